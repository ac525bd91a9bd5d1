"""Classes of the device model by the framework's operator names.

The names are PyTorch's dispatcher names (``"aten::mm"``), also without the name space and with an
overload (``"mm.default"``). What is not known by name is ``"other"``: it counts by its traffic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from advisor.planners.core.nouns import OperatorKind

# First match wins. Views move no data, so that they cost neither traffic nor a launch.
_PATTERNS: Final[tuple[tuple[OperatorKind, str], ...]] = (
    ("attention", r"attention|flash_attn|efficient_attn|fmha"),
    ("convolution", r"conv(olution|_transpose)?(\d?d)?(_|$)|mkldnn_convolution|thnn_conv"),
    ("recurrent", r"(lstm|gru|rnn)(_|$|cell|layer)|_thnn_fused|mkldnn_rnn"),
    ("matmul", r"^(_?scaled_)?(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|dot|mv|addmv|einsum)"
     r"|_int_mm|grouped_mm|tensordot|mkldnn_linear|_trilinear|bilinear$"),
    ("embedding", r"embedding|index_select|^gather|^index$|index_put|scatter|index_add|take"),
    ("normalisation", r"batch_norm|layer_norm|group_norm|instance_norm|rms_norm|local_response"),
    ("optimizer", r"^_?fused_(adam|sgd|adagrad)|^_foreach|adamw?_?$|sgd_?$|addcdiv|addcmul"),
    ("reduction", r"softmax|^(sum|mean|var|std|norm|linalg_vector_norm|max|min|amax|amin|argmax"
     r"|argmin|any|all|cumsum|logsumexp|prod|topk|sort|nll_loss|cross_entropy|median)"
     r"|pool|mse_loss|kl_div|smooth_l1"),
    ("copy", r"copy|clone|contiguous|^_?to$|^_to_copy|^cat$|^_cat$|concat|stack|pad|roll|repeat"
     r"|flip|^(zero|fill|zeros|ones|full|empty)|upsample|interpolate|fold|tril|triu|split_with"),
    ("elementwise", r"^(add|sub|mul|div|neg|exp|log|sqrt|rsqrt|pow|relu|gelu|silu|sigmoid|tanh"
     r"|threshold|dropout|native_dropout|where|masked|clamp|abs|erf|cos|sin|hardtanh|hardswish"
     r"|elu|leaky|bernoulli|eq|ne|lt|gt|le|ge|bitwise|logical|lerp|reciprocal|maximum|minimum"
     r"|sign|floor|round|prelu|mish|softplus|rand|normal|uniform|remainder|square|addc)"),
)  # fmt: skip
_COMPILED: Final = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)


@cache
def convolution_kind(shapes: str, flop: float) -> OperatorKind:
    """Return the class of a convolution by the shapes of its operands.

    - ``"depthwise"``: grouped. Each group is too narrow for matrix units and reads nearly as much
      as it computes.
    - ``"winograd"``: 3 x 3 of stride one, which libraries compute by minimal filtering with up to
      2.25 times fewer products (A. Lavin, S. Gray, CVPR 2016, section 4.1).
    - ``"convolution"``: any other, and where the shapes do not say.

    Parameters
    ----------
    shapes : str
        Of the operands as the collector writes them: ``"8x64x56x56,64x64x3x3"``, or with the
        gradient in front.
    flop : float
        Of one call forward; of a gradient's call any number. [flop]

    Examples
    --------
    >>> convolution_kind("8x32x56x56,32x1x3x3", 0.0)
    'depthwise'
    >>> convolution_kind("8x64x56x56,64x64x3x3", 2.0 * 8 * 56**2 * 64 * 64 * 9)
    'winograd'
    """
    sizes = [[int(n) for n in one.split("x")] for one in shapes.split(",") if _SIZES.match(one)]
    maps = [one for one in sizes if len(one) == len(sizes[0]) >= 3]
    if len(maps) < 2:
        return "convolution"
    *gradients, data, weight = maps[:3]
    if data[1] != weight[1]:
        # A transposed one has its channels in front of the weight, (in, out / groups, ...). From
        # the operands of a forward call alone it is told by having few channels more inside.
        is_regular = gradients[0][1] == weight[0] if gradients else data[1] >= 8 * weight[1]
        return "depthwise" if is_regular else "convolution"
    if weight[2:] != [3, 3]:
        return "convolution"
    if gradients:
        return "winograd" if gradients[0][2:] == data[2:] else "convolution"
    made = flop / (2.0 * math.prod(weight[1:]))
    kept = data[0] * weight[0] * math.prod(data[2:])
    return "winograd" if made > _UNPADDED * kept else "convolution"


# What is left of a small image by a 3 x 3 filter of stride one without padding, at least (a
# stride of two leaves a quarter).
_UNPADDED: Final = 0.5
_SIZES: Final = re.compile(r"\d+(x\d+)+$")


@cache
def kernels_in_call(name: str, shapes: str) -> float:
    """Return how many kernels one recorded call starts, one after another: 1 but for recurrence.

    A recurrent layer is one call of oneDNN's for all time steps, but each step waits for the last.
    The products with the input run for all steps at once; what is left of a step is one product
    with the hidden state and one fused kernel for the gates (J. Appleyard, T. Kocisky, P. Blunsom,
    "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016, section 3). A packed
    batch has no time axis: 1. So are cuDNN's calls: what is recorded on a GPU is anchored there.

    Parameters
    ----------
    shapes : str
        Of the operands as the collector writes them: first the input, (time steps, batch, ...).

    Examples
    --------
    >>> kernels_in_call("aten::mkldnn_rnn_layer", "35x20x128,512x128,512x128,512,512,20x128")
    70.0
    """
    if not name.split("::")[-1].startswith("mkldnn_rnn_layer"):
        return 1.0
    steps = _SEQUENCES.match(shapes)
    return float(_KERNELS_PER_TIME_STEP * int(steps[1])) if steps else 1.0


def fused_calls(calls: Mapping[str, float], products: Mapping[str, float]) -> dict[str, float]:
    """Return how many of each pass's calls are left where recurrent layers are fused, as a share.

    A layer whose time steps were recorded operator by operator (a GRU on a processor) has one
    product forward for each time step, and one for the input of all; libraries of accelerators
    run that and one kernel for the gates. Backward there are two products for each: the gradient
    of the hidden state waits for the next step's, with its gates, those of the weights run at once
    for all steps: two kernels a time step again (Appleyard et al., section 3).

    Parameters
    ----------
    calls, products : mapping of str to float
        By phase, all recorded calls of such layers, and the products among them.

    Examples
    --------
    >>> fused_calls({"forward": 300.0, "backward": 500.0}, {"forward": 30.0, "backward": 60.0})
    {'forward': 0.2, 'backward': 0.12}
    """
    each = {"forward": float(_KERNELS_PER_TIME_STEP), "backward": _KERNELS_PER_TIME_STEP / 2}
    return {
        phase: min(each[phase] * products[phase] / calls[phase], 1.0)
        for phase in each
        if calls.get(phase) and products.get(phase)
    }


_SEQUENCES: Final = re.compile(r"(\d+)x\d+x\d+(,|$)")
_KERNELS_PER_TIME_STEP: Final = 2


def operator_kind(name: str) -> OperatorKind:
    """Return the class of an operator by its framework name.

    Examples
    --------
    >>> operator_kind("aten::convolution_backward"), operator_kind("aten::_foreach_add_.List")
    ('convolution', 'optimizer')
    """
    bare = name.split("::")[-1].split(".")[0].lower()
    for kind, pattern in _COMPILED:
        if pattern.search(bare):
            return kind
    return "other"
