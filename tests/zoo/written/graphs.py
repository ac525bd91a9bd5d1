# rehearsed: batch=16 parameters=1709 steps=150
"""Many graphs in one, as PyTorch Geometric batches them: nodes are no samples."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class Graph:
    def __init__(self, **own):
        self.__dict__.update(own)

    def keys(self):
        return [name for name, one in vars(self).items() if torch.is_tensor(one)]

    def values(self):
        return [getattr(self, name) for name in self.keys()]

    def to(self, device):
        moved = {name: getattr(self, name).to(device) for name in self.keys()}
        return Graph(**{**vars(self), **moved})


def together(graphs):
    sizes = torch.tensor([len(one.x) for one in graphs])
    offsets = sizes.cumsum(0) - sizes
    return Graph(
        x=torch.cat([one.x for one in graphs]),
        edges=torch.cat([g.edges + at for g, at in zip(graphs, offsets, strict=True)], 1),
        y=torch.stack([one.y for one in graphs]),
        batch=torch.arange(len(graphs)).repeat_interleave(sizes),
        num_graphs=len(graphs),
    )


class Layer(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.own, self.other = nn.Linear(inside, outside), nn.Linear(inside, outside)

    def forward(self, x, edges):
        source, target = edges
        summed = torch.zeros_like(x).index_add_(0, target, x[source])
        degree = torch.zeros(len(x), device=x.device).scatter_add_(
            0, target, torch.ones(len(target), device=x.device)
        )
        return (self.own(x) + self.other(summed / degree.clamp(min=1)[:, None])).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(7, 24), Layer(24, 24)])
        self.head = nn.Linear(24, 5)

    def forward(self, graph):
        x = graph.x
        for layer in self.layers:
            x = layer(x, graph.edges)
        pooled = torch.zeros(graph.num_graphs, 24, device=x.device)
        return self.head(pooled.scatter_reduce(
            0, graph.batch[:, None].expand_as(x), x, "mean", include_self=False
        ))  # fmt: skip


def made(number):
    nodes = 8 + number % 9
    return Graph(
        x=torch.rand(nodes, 7), edges=torch.randint(0, nodes, (2, 3 * nodes)),
        y=torch.tensor(number % 5),
    )  # fmt: skip


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader([made(i) for i in range(240)], 16, shuffle=True, collate_fn=together)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
right = 0
for _epoch in range(1, 11):
    for graph in loader:
        graph = graph.to(device)
        optimizer.zero_grad()
        told = model(graph)
        nn.functional.cross_entropy(told, graph.y).backward()
        optimizer.step()
        right += int((told.argmax(dim=-1) == graph.y).sum())
