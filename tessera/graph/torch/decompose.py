"""Says which ATen operations torch takes apart before a graph reaches us, and which stay whole."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._decomp import decompositions as torchs
from torch._prims_common import (
    compute_elementwise_output_logical_to_physical_perm,
    suggest_memory_format,
)

from tessera.graph.torch.foreach import foreach_decompositions
from tessera.graph.torch.windows import sums_windows, weight_gradient

aten = torch.ops.aten

# Operations of core ATen that become element-wise operations and reductions.
TAKEN_APART = (
    aten._softmax, aten._log_softmax, aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm,
    aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional, aten._native_batch_norm_legit_no_training,
    aten.native_layer_norm_backward, aten.native_group_norm_backward, aten.native_batch_norm_backward,
    aten._softmax_backward_data, aten._log_softmax_backward_data, aten.gelu_backward, aten.hardtanh, aten.elu,
    aten.leaky_relu, aten.upsample_bilinear2d, aten.grid_sampler_2d,
    aten._fused_rms_norm, aten._fused_rms_norm_backward, aten._batch_norm_with_update, aten._batch_norm_no_update,
    aten._batch_norm_with_update_functional, aten.batch_norm_backward, aten.addmv, aten.dist, aten.lcm, aten.gcd,
    aten.narrow_copy, aten.permute_copy, aten.unbind_copy, aten.round.decimals, aten.rrelu_with_noise_backward,
    aten.tril_indices, aten.triu_indices, aten.upsample_bicubic2d, aten.upsample_trilinear3d,
    aten.lift,
)  # fmt: skip

# Operations whose first result is row-major or has channels last on CPUs, as the argument at this place is.
FORMATTED_BY = {
    aten.native_batch_norm: 0, aten._native_batch_norm_legit: 0, aten._native_batch_norm_legit_functional: 0,
    aten._native_batch_norm_legit_no_training: 0, aten._batch_norm_with_update: 0, aten._batch_norm_no_update: 0,
    aten._batch_norm_with_update_functional: 0, aten.native_batch_norm_backward: 1, aten.batch_norm_backward: 1,
    aten.max_unpool2d: 0,
}  # fmt: skip

# Operations whose first result is row-major on CPUs, where torch's decomposition keeps the order of an argument.
ROW_MAJOR = (
    aten._log_softmax_backward_data, aten.native_layer_norm_backward, aten.mse_loss_backward,
    aten.smooth_l1_loss_backward, aten.huber_loss_backward, aten.log_sigmoid_forward, aten.glu_backward,
)  # fmt: skip
# Those that order it by arguments at these places, of which the first counts most; torch's decomposition by others.
ORDERED_BY = {
    aten.hardswish_backward: (0, 1), aten.hardsigmoid_backward: (0, 1), aten.softplus_backward: (0, 1),
    aten.hardtanh_backward: (0, 1), aten.elu_backward: (0, 5), aten.binary_cross_entropy: (0,),
    aten.binary_cross_entropy_backward: (1,),
}  # fmt: skip

# Operations that we lower better than what they would become; attention, whose backward takes the logarithms of sums
# that its forward gives: taken apart it gives the weights in their place; and a copy that would become an alias, which
# the gradient of a scan may not have.
KEPT_WHOLE = (
    aten.index_add, aten.index_copy, aten.stack, aten.roll, aten.select_scatter, aten.baddbmm, aten.alias_copy,
    aten._scaled_dot_product_flash_attention_for_cpu,
)  # fmt: skip


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload -> function, for AOTAutograd."""
    table = {
        **dict(core_aten_decompositions().items()),
        **get_decompositions(TAKEN_APART),
        **foreach_decompositions(),
        aten.convolution_backward.default: convolution_backward,
        aten._adaptive_avg_pool2d.default: adaptive_avg_pool2d,
        aten.ldexp.Tensor: ldexp,
        aten.as_strided_scatter.default: as_strided_scatter,
        aten.multilabel_margin_loss_forward.default: multilabel_margin_loss,
        aten._efficientzerotensor.default: torch.zeros,  # whose tensors have no memory
    }
    placing = {
        **{packet: partial(_formatted_by, place) for packet, place in FORMATTED_BY.items()},
        **{packet: partial(_ordered_by, places) for packet, places in ORDERED_BY.items()},
        **dict.fromkeys(ROW_MAJOR, partial(_ordered_by, ())),
    }
    for packet, placed_as in placing.items():
        for overload in {getattr(packet, name) for name in packet.overloads()} & set(table):
            table[overload] = partial(placed_as, table[overload])
    whole = {getattr(packet, name) for packet in KEPT_WHOLE for name in packet.overloads()}
    return {o: rule for o, rule in table.items() if o not in whole and not _is_attention(o)}


def _is_attention(overload: Any) -> bool:
    """Fused attention, whose backward takes what the fused forward gives: its parts give something else there."""
    return overload._schema.name.startswith("aten::_scaled_dot_product")


def convolution_backward(grad: Any, x: Any, weight: Any, *rest: Any) -> Any:
    """The gradient of a bias as a sum, which is fused with others, and that of a weight as a loop where the library
    would take much memory for it. On CPUs the library computes both or none, the bias's as quickly."""
    mask = rest[-1]
    windows = sums_windows(grad, x, weight, rest)
    sums = mask[2] and (windows or grad.is_cuda)
    if not sums and not windows:
        return NotImplemented
    left = [mask[0], mask[1] and not windows, mask[2] and not sums]
    found = (None, None, None)
    if any(left):
        found = aten.convolution_backward.default(grad, x, weight, *rest[:-1], left)
    of_weight = weight_gradient(grad, x, weight, rest) if windows else found[1]
    of_bias = grad.sum([0, *range(2, grad.dim())]) if sums else found[2]
    return found[0], of_weight, of_bias


def _ordered_by(places: tuple[int, ...], rule, *args, **keywords):
    """The first result in the order of the elements of arguments, row-major for none of them, as on CPUs eager's is."""

    def lain(first):
        order = range(first.dim())
        if places:
            deciding = (args[k] for k in places)
            order = compute_elementwise_output_logical_to_physical_perm(*deciding)[0]
        back = map(list(order).index, range(len(order)))
        return first.permute(*order).contiguous().permute(*back)

    return _first_changed(lain, rule(*args, **keywords), keywords)


def _formatted_by(place: int, rule, *args, **keywords):
    """Row-major, or with channels last, as on CPUs eager's result is: torch's decomposition keeps other strides."""

    def lain(first):
        return first.contiguous(memory_format=suggest_memory_format(args[place]))

    return _first_changed(lain, rule(*args, **keywords), keywords)


def _first_changed(change, found, keywords):
    """What was found, its first tensor changed if it is one of a CPU and not given by the caller."""
    several = isinstance(found, tuple)
    first = found[0] if several else found
    if "out" in keywords or first is None or not first.dim() or first.device.type != "cpu":
        return found
    return (change(first), *found[1:]) if several else change(first)


def adaptive_avg_pool2d(x: Any, size: Any) -> Any:
    """As torch's decomposition, whose result is row-major, in the order of the elements of `x`, as eager's is; torch's
    divides by the sizes of the result, which may be 0."""
    if 0 in size:
        found = x.new_empty([*x.shape[:-2], *size])
    else:
        found = torchs.adaptive_avg_pool2d(x, size)
    return found.contiguous(memory_format=suggest_memory_format(x))


def ldexp(x: Any, exponent: Any) -> Any:
    """A product with a power of two where the exponent is a float; whole ones, whose powers may be beyond the range of
    floats, have a rule."""
    return torchs.ldexp(x, exponent) if exponent.is_floating_point() else NotImplemented


def as_strided_scatter(x: Any, source: Any, *where: Any) -> Any:
    """Of an expanded tensor as eager does it, into a copy: torch's tracing foretells strides of 0, with which what was
    written would be lost."""
    if not any(step == 0 and n != 1 for n, step in zip(x.shape, x.stride(), strict=True)):
        return NotImplemented
    copy = x.clone(memory_format=torch.contiguous_format)
    return aten.as_strided_scatter.default(copy, source, *where)


def multilabel_margin_loss(x: Any, target: Any, reduction: int) -> Any:
    """As eager, which heeds no class from the first -1 on: torch's decomposition adds class 0 for each of those."""
    rows, wanted = torch.atleast_2d(x), torch.atleast_2d(target)
    heeded = (wanted < 0).cumsum(1).unsqueeze(2) == 0
    classes = torch.arange(rows.shape[1], device=x.device)
    named = (heeded & (wanted.unsqueeze(2) == classes)).any(1, keepdim=True)
    short = (1 - rows.gather(1, wanted.clamp_min(0)).unsqueeze(2) + rows.unsqueeze(1)).clamp_min(0)
    sums = torch.where(heeded & ~named, short, 0).sum((1, 2))
    loss = sums.reshape(target.shape[:-1]) / rows.shape[1]
    return (loss, loss.mean(), loss.sum())[reduction], named.to(x.dtype).reshape(target.shape)


@contextmanager
def repaired() -> Iterator[None]:
    """Ours in place of a wrong decomposition that torch's tracing takes before it asks for `decompositions`."""
    loss, key = aten.multilabel_margin_loss_forward.default, DispatchKey.Autograd
    before = dict(loss.py_kernels)  # of other releases perhaps without one
    loss._dispatch_cache.clear()
    loss.py_kernels.update({key: multilabel_margin_loss} if key in before else {})
    try:
        yield
    finally:
        loss.py_kernels.update(before)
        loss._dispatch_cache.clear()


# Operations one of whose arguments, the one at this place, counts elements from the beginning of a storage.
PLACED = {
    "aten.as_strided.default": 3,
    "aten.as_strided_copy.default": 3,
    "aten.as_strided_scatter.default": 4,
}


def placed(target: Any, x: Any) -> tuple[str, Any]:
    """The name of an operation and what runs it on a tensor `x` of torch's tracing: a tensor that is traced as one of
    its own lies somewhere in an arena, from where on what `PLACED` takes has to count."""
    traced = x.storage_offset() if str(target) in PLACED else None
    if not isinstance(traced, int):
        return str(target), target
    name = f"{target}+{traced}" if traced else str(target)
    return name, partial(_moved, target, PLACED[str(target)], traced)


def _moved(run: Any, at: int, traced: int, x: Any, *args: Any, **keywords: Any) -> Any:
    by = x.storage_offset() - traced
    given = [x, *args]
    if len(given) > at and given[at] is not None:
        given[at] += by
    elif keywords.get("storage_offset") is not None:
        keywords["storage_offset"] += by
    return run(*given, **keywords)
