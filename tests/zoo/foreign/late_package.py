# foreign: steps=1000 says="pip install scikit-image"
# The package is wanted by a function only, as OpenCV's often is.
import torch


def load():
    import skimage.data

    return torch.tensor(skimage.data.camera()).float()


image = load()
model = torch.nn.Linear(image.shape[1], 64)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    loss = model(image).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
