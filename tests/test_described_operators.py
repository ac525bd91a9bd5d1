"""A described transformer's operators against PyTorch's own, counted on tensors without memory.

The oracle is a small model written out in PyTorch and run on the ``meta`` device: every operator
that reaches the dispatcher is counted with the entries that it reads and writes. Views, copies and
vectors (biases, scales) are left aside, as the description leaves them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from advisor.planners.core.nouns import Work
from advisor.planners.core.setup import TrainingSetup, Transformer, transformer_parameters
from advisor.planners.step.describe import transformer_work
from advisor.planners.step.describe_encoder_decoders import EncoderDecoder, encoder_decoder_work

torch = pytest.importorskip("torch")
F = torch.nn.functional
BATCH, LENGTH, RANK = 2, 8, 3
PLAIN = Transformer(
    layers=3, hidden=16, heads=4, ffn=48, sequence=LENGTH, vocabulary=100, is_causal=False
)
FEWER = replace(PLAIN, kv_heads=2)
GATED = Transformer(
    layers=3, hidden=16, heads=4, ffn=40, sequence=LENGTH, vocabulary=100,
    is_gated=True, has_tied_embeddings=False,
)  # fmt: skip
SILENT = {
    "view", "_unsafe_view", "t", "transpose", "expand", "clone", "detach", "ones_like", "slice",
    "slice_backward", "embedding", "unsqueeze", "squeeze", "ones", "stack", "unbind", "select",
    "select_backward",
}  # fmt: skip
Counts = dict[str, tuple[float, float]]  # calls and entries, by phase and group


def _counter() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.phase = "forward"
            self.calls: Counter[str] = Counter()
            self.entries: Counter[str] = Counter()

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            flat = torch.utils._pytree.tree_leaves((args, out))
            tensors = [one for one in flat if isinstance(one, torch.Tensor)]
            # Of five dimensions are keys and values on their way to the heads that share them.
            if name not in SILENT and max(one.dim() for one in tensors) < 5:
                group = {"addmm": "products", "mm": "products", "bmm": "scores"}.get(name, "rest")
                self.calls[f"{self.phase} {group}"] += 1
                self.entries[f"{self.phase} {group}"] += sum(
                    one.numel() for one in tensors if one.dim() > 1 and min(one.shape) > 1
                )
            return out

    return Seen()


def _linear(inner: int, columns: int, *, bias: bool, rank: int = 0) -> Any:
    """Return a dense layer; with a rank it is frozen, and an adapter is trained beside it."""
    made = torch.nn.Linear(inner, columns, bias=bias).requires_grad_(not rank)
    if not rank:
        return made
    down = torch.nn.Linear(inner, rank, bias=False)
    up = torch.nn.Linear(rank, columns, bias=False)
    return lambda x: made(x) + up(down(x)) * 2.0


def _root_mean_square(width: int) -> Any:
    weight = torch.nn.Parameter(torch.ones(width))
    return lambda x: weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    angle = torch.ones(x.shape[-1])
    return x * angle + turned * angle


def _block(model: Transformer, rank: int) -> Any:
    """Return one layer in eager PyTorch: attention written out, with a whole mask of scores."""
    h, heads, ffn = model.hidden, model.heads, model.ffn or 4 * model.hidden
    kv, width, bias = model.kv_heads or heads, h // heads, not model.is_gated
    q, o = (_linear(h, h, bias=bias, rank=rank) for _ in "qo")
    k, v = (_linear(h, kv * width, bias=bias, rank=rank) for _ in "kv")
    ups = [_linear(h, ffn, bias=bias, rank=rank) for _ in range(2 if model.is_gated else 1)]
    down = _linear(ffn, h, bias=bias, rank=rank)
    norms = [_root_mean_square(h) if model.is_gated else torch.nn.LayerNorm(h) for _ in "12"]
    mask = torch.zeros(BATCH, heads, LENGTH, LENGTH)

    def split(x: Any, count: int) -> Any:
        return x.view(BATCH, LENGTH, count, width).transpose(1, 2)

    def forward(x: Any) -> Any:
        y = norms[0](x)
        asked, keys, values = split(q(y), heads), split(k(y), kv), split(v(y), kv)
        if model.is_gated:
            asked, keys = _rotated(torch.stack((asked, keys)).flatten(0, 1)).view(2, *asked.shape)
        if kv < heads:
            keys, values = (
                one[:, :, None].expand(-1, -1, heads // kv, -1, -1).reshape(asked.shape)
                for one in (keys, values)
            )
        scores = asked @ keys.transpose(2, 3) / 2.0 + mask
        x = x + o((scores.softmax(-1) @ values).transpose(1, 2).reshape(BATCH * LENGTH, h))
        y = norms[1](x)
        inner = F.silu(ups[0](y)) * ups[1](y) if model.is_gated else ups[0](y).relu()
        return x + down(inner)

    return forward


def _counted(model: Transformer, rank: int = 0) -> Counts:
    with torch.device("meta"):
        table = torch.nn.Embedding(model.vocabulary, model.hidden)
        blocks = [_block(model, rank) for _ in range(model.layers)]
        last = _root_mean_square(16) if model.is_gated else torch.nn.LayerNorm(16)
        head = torch.nn.Linear(model.hidden, model.vocabulary, bias=False)
        head.requires_grad_(not rank)
        ids = torch.zeros(BATCH * LENGTH, dtype=torch.long)
        with _counter() as seen:
            x = table(ids)
            if rank:
                x = x.detach().requires_grad_()
            for block in blocks:
                x = block(x)
            loss = F.cross_entropy(head(last(x)), ids)
            seen.phase = "backward"
            loss.backward()
    return {name: (seen.calls[name], seen.entries[name]) for name in seen.calls}


def _described(work: Work, size: int) -> Counts:
    calls: defaultdict[str, float] = defaultdict(float)
    entries: defaultdict[str, float] = defaultdict(float)
    for one in work.operators:
        if one.phase == "optimizer" or (one.name, one.phase) == ("embedding", "forward"):
            continue
        group = "products" if one.kind == "matmul" else "rest"
        name = f"{one.phase} {'scores' if one.name == 'scores' else group}"
        calls[name] += one.count
        entries[name] += one.bytes / size
    return {name: (calls[name], entries[name]) for name in calls}


def _as_described(counted: Counts, model: Transformer) -> Counts:
    """Return what PyTorch does but for the one thing that is described otherwise.

    Of written-out attention the scores are counted in full, and queries, keys, values and results
    by half (the constants were fitted so); keys and values as often as they are stored.
    """
    tokens, kv = BATCH * LENGTH, model.hidden * (model.kv_heads or model.heads) // model.heads
    scores = 2 * BATCH * model.heads * LENGTH**2 + tokens * (model.hidden + kv)
    return counted | {
        f"{phase} scores": (counted[f"{phase} scores"][0], times * model.layers * scores)
        for phase, times in (("forward", 1), ("backward", 2))
    }


@pytest.mark.parametrize(
    ("model", "rank"),
    [(PLAIN, 0), (FEWER, 0), (PLAIN, RANK), (GATED, 0), (GATED, RANK)],
    ids=["plain", "fewer keys", "adapters", "gated", "gated, adapters"],
)
def test_every_operator_of_a_described_step_is_one_of_pytorch(
    model: Transformer, rank: int
) -> None:
    setup = TrainingSetup(attention="unfused", adapter_rank=rank or None)
    work = transformer_work(model, micro_batch=BATCH, precision="fp32", setup=setup)
    found, counted = _described(work, 4), _as_described(_counted(model, rank), model)
    if model.is_gated:
        # What is written out in Python goes backward in slightly more operators here.
        calls, entries = found.pop("backward rest")
        real_calls, real_entries = counted.pop("backward rest")
        assert calls == pytest.approx(real_calls, rel=0.12)
        assert entries == pytest.approx(real_entries, rel=0.05)
    assert found == counted


def test_fused_attention_streams_its_operands_and_computes_half_of_a_causal_square() -> None:
    """Forward two products of every pair, backward five; queries, keys, values, results once."""
    for model, seen in ((PLAIN, 1.0), (GATED, 0.5)):
        work = transformer_work(model, micro_batch=BATCH, precision="bf16")
        forward, backward = (one for one in work.operators if one.kind == "attention")
        pairs = BATCH * model.layers * LENGTH**2
        assert forward.flop == seen * 2 * 2 * pairs * model.hidden
        assert backward.flop == seen * 5 * 2 * pairs * model.hidden
        assert forward.bytes == 2 * 4 * BATCH * LENGTH * model.hidden * model.layers
        assert backward.bytes == 2 * forward.bytes
        assert (forward.count, backward.count) == (model.layers, model.layers)


def _by_name(work: Work, phase: str = "forward") -> dict[str, tuple[float, float, float]]:
    return {
        one.name: (one.count, one.flop, one.fixed_bytes)
        for one in work.operators
        if one.phase == phase and one.kind == "matmul"
    }


def test_experts_are_all_read_and_those_a_token_meets_are_computed() -> None:
    """Two of five experts: twice the products of rows, five times the weights; and a router."""
    mixed = replace(GATED, experts=5, experts_per_token=2)
    one, many = (
        _by_name(transformer_work(model, micro_batch=BATCH, precision="bf16"))
        for model in (GATED, mixed)
    )
    for name in ("up", "down"):
        assert many[name] == (one[name][0], 2 * one[name][1], 5 * one[name][2])
    tokens = BATCH * LENGTH
    assert many["router"] == (3, 3 * 2 * tokens * 16 * 5, 3 * 2 * 16 * 5)
    work = transformer_work(mixed, micro_batch=BATCH)
    sent = [o for o in work.operators if o.name == "dispatch"]
    assert [(o.count, o.bytes) for o in sent] == [(6, 3 * 4 * 2 * 2 * tokens * 16)] * 2


def test_a_quantised_base_is_written_out_wherever_products_run_in_16_bits() -> None:
    """NF4: for every product; LLM.int8: backward, and forward it works on the activations."""
    products, tokens = 3 * 7, BATCH * GATED.sequence
    weights = 3 * (4 * 16 * 16 + 3 * 16 * 40)
    elements = tokens * 3 * (4 * (16 + 16) + 3 * (16 + 40))
    for bits, forward, backward, of_elements in ((4, 2.5, 2.5, 0.0), (8, 0.0, 7.0, 88.5)):
        setup = TrainingSetup(adapter_rank=RANK, base_bits=bits)  # type: ignore[arg-type]
        work = transformer_work(GATED, micro_batch=BATCH, precision="bf16", setup=setup)
        for phase, moved in (("forward", forward), ("backward", backward)):
            found = [o for o in work.operators if o.name == "quantised" and o.phase == phase]
            assert sum(o.fixed_bytes for o in found) == pytest.approx(weights * moved)
            grown = sum(o.bytes - o.fixed_bytes for o in found)
            expected = elements * of_elements if phase == "forward" else 0.0
            assert grown == pytest.approx(expected)
            assert sum(o.flop for o in found) == pytest.approx(31.6 * weights * (bits == 4))
            assert sum(o.count for o in found) >= products


def test_frozen_layers_go_forward_only() -> None:
    """Embeddings freeze first, then layers from below; what is frozen has no backward pass."""
    table = 100 * 16
    for frozen in (1, 2):
        layer = 4 * 16 * 16 + 3 * 16 * 40 + 2 * 16
        whole = transformer_parameters(GATED)
        share = (table + frozen * (whole - 2 * table) / 3) / whole
        assert layer == pytest.approx((whole - 2 * table) / 3, rel=0.01)
        setup = TrainingSetup(frozen_fraction=share)
        work = transformer_work(GATED, micro_batch=BATCH, setup=setup)
        counts = {(o.name, o.phase): o.count for o in work.operators}
        assert counts["up", "forward"] == 2 * 3
        assert counts["up", "backward"] == pytest.approx(2 * 2 * (3 - frozen))
        assert ("embedding", "backward") not in counts


@pytest.mark.parametrize(
    ("optimizer", "passes", "kernels"),
    [("adamw", 21, 10), ("sgd", 3, 1), ("sgd-momentum", 8, 3), ("adafactor", 20, 15)],
)
def test_an_update_makes_its_passes_over_every_trained_parameter(
    optimizer: Any, passes: int, kernels: int
) -> None:
    """Over lists of tensors in so many kernels; Adafactor's for every tensor."""
    for model, tensors in ((PLAIN, 3 * 6 * 2), (GATED, 3 * 7)):
        setup = TrainingSetup(optimizer=optimizer)
        work = transformer_work(model, micro_batch=BATCH, precision="bf16", setup=setup)
        found = work.operators[-1]
        assert found.bytes == found.fixed_bytes == passes * 4 * work.parameters
        assert found.count == kernels * (tensors if optimizer == "adafactor" else 1)
    setup = TrainingSetup(optimizer=optimizer, adapter_rank=RANK)
    work = transformer_work(GATED, micro_batch=BATCH, precision="bf16", setup=setup)
    trained = RANK * 3 * (4 * 2 * 16 + 3 * (16 + 40))
    found = work.operators[-1]
    assert work.trainable_parameters == trained
    assert work.parameters == transformer_parameters(GATED) + trained
    assert found.bytes == passes * 4 * trained
    assert found.count == kernels * (2 * 3 * 7 if optimizer == "adafactor" else 1)


# An encoder-decoder, with what its backward pass finds kept.


SEEN = EncoderDecoder(
    encoder_layers=2, decoder_layers=3, hidden=16, encoder_heads=4, decoder_heads=2,
    encoder_ffn=24, decoder_ffn=40, vocabulary=100, source=12, target=LENGTH,
    has_embedding_norms=True, encoder_positions=12, decoder_positions=LENGTH,
)  # fmt: skip


def _attended(heads: int) -> Any:
    """Return attention written out, biases everywhere, with a whole mask of scores."""
    q, k, v, o = (_linear(16, 16, bias=True) for _ in range(4))
    masks = {keys: torch.zeros(BATCH, heads, LENGTH, keys) for keys in (LENGTH, 12)}
    masks[0] = torch.zeros(BATCH, heads, 12, 12)

    def split(x: Any) -> Any:
        return x.view(BATCH, -1, heads, 16 // heads).transpose(1, 2)

    def forward(queries: Any, read: Any) -> Any:
        scores = split(q(queries)) @ split(k(read)).transpose(2, 3) / 2.0
        mask = masks[0] if scores.shape[2] == 12 else masks[scores.shape[3]]
        weights = (scores + mask).softmax(-1)
        return o((weights @ split(v(read))).transpose(1, 2).reshape(-1, 16))

    return forward


def _stack(layers: int, heads: int, ffn: int, *, reads: bool = False) -> Any:
    made = [
        (_attended(heads), _attended(heads), _linear(16, ffn, bias=True),
         _linear(ffn, 16, bias=True), [torch.nn.LayerNorm(16) for _ in range(3)])
        for _ in range(layers)
    ]  # fmt: skip
    last = torch.nn.LayerNorm(16)

    def forward(x: Any, source: Any = None) -> Any:
        for own, other, up, down, norms in made:
            y = norms[0](x)
            x = x + own(y, y)
            if reads:
                x = x + other(norms[1](x), source)
            x = x + down(F.gelu(up(norms[2](x))))
        return last(x)

    return forward


def test_an_encoder_decoders_operators_are_those_of_pytorch() -> None:
    setup = TrainingSetup(attention="unfused")
    work = encoder_decoder_work(SEEN, micro_batch=BATCH, precision="fp32", setup=setup)
    kept: dict[int, Any] = {}  # storages, alive so that no other one takes their place

    def pack(tensor: Any) -> Any:
        if not isinstance(tensor, torch.nn.Parameter) and tensor.is_floating_point():
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage
        return tensor

    weights: set[int] = set()

    def note(module: Any, name: str, one: Any) -> None:
        if one is not None:
            weights.add(one.untyped_storage()._cdata)

    watched = torch.nn.modules.module.register_module_parameter_registration_hook(note)
    with torch.device("meta"):
        table, head = torch.nn.Embedding(100, 16), _linear(16, 100, bias=False)
        places = [torch.nn.Parameter(torch.zeros(BATCH * n, 16)) for n in (12, LENGTH)]
        norms = [torch.nn.LayerNorm(16) for _ in range(2)]
        encode, decode = _stack(2, 4, 24), _stack(3, 2, 40, reads=True)
        words = [torch.zeros(BATCH * n, dtype=torch.long) for n in (12, LENGTH)]
        watched.remove()
        weights |= {one.untyped_storage()._cdata for one in places}
        with _counter() as seen:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                source = encode(norms[0](table(words[0]) + places[0]))
                target = decode(norms[1](table(words[1]) + places[1]), source)
                loss = F.cross_entropy(head(target), words[1])
            seen.phase = "backward"
            loss.backward()
    found = _described(work, 4)
    for name in ("forward products", "backward products"):
        assert found[name] == (seen.calls[name], seen.entries[name])
    for name in ("forward scores", "backward scores"):
        assert found[name][0] == seen.calls[name]
    assert found["forward rest"] == (seen.calls["forward rest"], seen.entries["forward rest"])
    # One sum of gradients is counted for every residual; queries, keys and values add theirs here.
    adds = 2 * (2 + 2 * 3 + 1)
    calls, entries = found["backward rest"]
    assert calls == pytest.approx(seen.calls["backward rest"] - adds, abs=1)
    assert entries == pytest.approx(seen.entries["backward rest"], rel=0.2)
    held = sum(one.nbytes() for name, one in kept.items() if name not in weights)
    # Mean and deviation of each row of 6 normalisations of the source and 11 of the target aside.
    aside = 4 * 2 * BATCH * (6 * 12 + 11 * LENGTH)
    assert BATCH * work.saved_bytes_per_sample == pytest.approx(held - aside, abs=4)
    assert work.input_bytes_per_sample == 8 * (12 + LENGTH)


def test_a_spectrogram_passes_two_convolutions_of_three_frames_the_second_by_two() -> None:
    """Products, parameters and inputs beside those of the same model over words of its own."""
    words = replace(SEEN, encoder_positions=0, decoder_positions=0)
    audio = replace(words, audio_channels=5)
    text, sound = (
        encoder_decoder_work(one, micro_batch=BATCH, precision="fp32") for one in (words, audio)
    )
    first, second = BATCH * 24 * (3 * 5 * 16), BATCH * 12 * (3 * 16 * 16)
    found = [o for o in sound.operators if o.name == "convolution"]
    forward = sum(o.flop for o in found if o.phase == "forward")
    assert forward == 2 * (first + second)
    # Nothing is handed back to the spectrogram; the second has both gradients.
    assert sum(o.flop for o in found if o.phase == "backward") == 2 * (first + 2 * second)
    moved = 4 * BATCH * (24 * 5 + 24 * 16 + 24 * 16 + 12 * 16) + 4 * (3 * 5 * 16 + 3 * 16 * 16)
    assert sum(o.bytes for o in found if o.phase == "forward") == moved
    # Going back, weights are read and their gradients written, whatever the batch.
    fixed = 2 * 4 * (3 * 5 * 16 + 3 * 16 * 16)
    assert sum(o.fixed_bytes for o in found if o.phase == "backward") == fixed
    own = (3 * 5 * 16 + 16) + (3 * 16 * 16 + 16)
    assert sound.parameters - text.parameters == own
    assert sound.input_bytes_per_sample == 4 * 5 * 24 + 8 * LENGTH
    assert text.input_bytes_per_sample == 8 * 12 + 8 * LENGTH
