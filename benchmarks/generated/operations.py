"""Single operations by name: a function of tensors, and a function that makes them. `made(name, dtype)` gives both.

Shapes hold 2**23 elements where an operation allows it: 32 MiB in fp32, which a GPU moves in some ten µs.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

Made = tuple[Callable[..., Any], Callable[[Any], list[Any]]]
FLAT, CUBE, IMAGE, ROWS = (1 << 23,), (64, 256, 512), (16, 32, 128, 128), (4096, 2048)
OPERATIONS: dict[str, Made] = {}


def tensors(*shapes: tuple[int, ...]) -> Callable[[Any], list[Any]]:
    return lambda dtype: [torch.randn(shape, dtype=dtype) for shape in shapes]


def indices(below: int, *shape: int) -> Any:
    return torch.randint(0, below, shape)


def with_indices(below: int, of: tuple[int, ...], *shapes: tuple[int, ...]) -> Any:
    """Tensors, and a last one of indices in the shape `of`."""
    return lambda dtype: [*tensors(*shapes)(dtype), indices(below, *of)]


def integers(*shapes: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Any:
    return lambda _: [torch.randint(1, 100, shape, dtype=dtype) for shape in shapes]


def add(name: str, function: Callable[..., Any], *shapes: tuple[int, ...], of: Any = None) -> None:
    assert name not in OPERATIONS, name
    OPERATIONS[name] = (function, tensors(*shapes) if of is None else of)


# --- element by element ----------------------------------------------------------------------------------------------
POINTWISE = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor "
    "frac lgamma log log10 log1p log2 logit nan_to_num neg reciprocal round rsqrt sigmoid sign signbit sin "
    "sinc sinh sqrt square tan tanh trunc isnan isinf positive"
)
SPECIAL = (
    "bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx i0e i1 i1e log_ndtr modified_bessel_i0 "
    "modified_bessel_i1 ndtr ndtri scaled_modified_bessel_k0 spherical_bessel_j0"
)
ACTIVATIONS = (
    "elu selu celu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 silu softplus "
    "softshrink softsign tanhshrink hardshrink glu"
)
PAIRS = (
    "add sub mul true_divide pow atan2 hypot copysign nextafter maximum minimum fmax fmin fmod remainder "
    "floor_divide xlogy logaddexp logaddexp2 heaviside eq lt logical_and"
)
INTEGER_PAIRS = (
    "add mul floor_divide remainder fmod bitwise_and bitwise_left_shift bitwise_right_shift maximum"
)


def pointwise() -> None:
    for name in POINTWISE.split():
        add(name, getattr(torch, name), FLAT)
    for name in SPECIAL.split():
        add(f"special.{name}", getattr(torch.special, name), FLAT)
    for name in ACTIVATIONS.split():
        add(name, getattr(F, name), ROWS)
    add("gelu tanh", partial(F.gelu, approximate="tanh"), ROWS)
    add("i0", torch.i0, FLAT)
    add("polygamma", partial(torch.polygamma, 2), FLAT)
    for name in PAIRS.split():
        add(name, getattr(torch, name), FLAT, FLAT)
    for name in INTEGER_PAIRS.split():
        add(f"{name} int64", getattr(torch, name), of=integers(FLAT, FLAT))
        add(
            f"{name} int32",
            getattr(torch, name),
            of=integers(FLAT, FLAT, dtype=torch.int32),
        )
    add("pow 2.5", lambda x: x**2.5, FLAT)
    add("integer division by 7", lambda x: x // 7, of=integers(FLAT))
    add("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=0.5), FLAT, FLAT, FLAT)
    add("addcdiv", lambda a, b, c: torch.addcdiv(a, b, c, value=0.5), FLAT, FLAT, FLAT)
    add("lerp", lambda a, b: torch.lerp(a, b, 0.3), FLAT, FLAT)
    add("clamp", lambda x: x.clamp(-0.5, 0.5), FLAT)
    add("where", lambda a, b: torch.where(a > b, a, b * 2), FLAT, FLAT)
    add("swiglu", lambda a, b: F.silu(a) * b, ROWS, ROWS)
    add("broadcast rows and columns", lambda a, b, c: a * b[:, None] + c, ROWS, (4096,), (2048,))
    add("to bf16 and back", lambda x: x.to(torch.bfloat16).to(torch.float32) * 2, FLAT)
    add("to fp8", lambda x: (x * 4).to(torch.float8_e4m3fn), FLAT)
    add("quantize", lambda x: (x * 20).round().clamp(-128, 127).to(torch.int8), FLAT)
    add("dequantize", lambda x: x.to(torch.float32) * 0.1, of=integers(FLAT, dtype=torch.int8))
    add("frexp", lambda x: torch.frexp(x), FLAT)
    add("ldexp", lambda x: torch.ldexp(x, torch.tensor(3)), FLAT)


# --- reductions and scans over each dimension ------------------------------------------------------------------------
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
    "var": torch.var,
    "std": torch.std,
    "logsumexp": torch.logsumexp,
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    "L1 norm": lambda x, dim: torch.linalg.vector_norm(x, 1, dim=dim),
    "nansum": torch.nansum,
    "any": lambda x, dim: (x > 3).any(dim),
    "count_nonzero": torch.count_nonzero,
    "var_mean": torch.var_mean,
    "sum of squares": lambda x, dim: (x * x).sum(dim),
}
ONE_DIMENSION: dict[str, Callable[..., Any]] = {
    "prod": torch.prod,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "max": torch.max,
    "min": torch.min,
    "aminmax": lambda x, dim: torch.aminmax(x, dim=dim),
    "all": lambda x, dim: (x > -3).all(dim),
}
SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")


def reductions() -> None:
    for name, function in {**REDUCTIONS, **ONE_DIMENSION}.items():
        for dim in (0, 1, 2):
            add(f"{name} over dimension {dim}", partial(function, dim=dim), CUBE)
    for name, function in REDUCTIONS.items():
        for dims in ((0, 1), (0, 2), (0, 1, 2)):
            add(f"{name} over {dims}", partial(function, dim=dims), CUBE)
    add("sum of odd rows", lambda x: x.sum(-1), (7001, 1001))
    add("max of long rows", lambda x: x.max(-1), (16, 1 << 19))
    add("sum of long rows", lambda x: x.sum(-1), (16, 1 << 19))
    add("mean of all", torch.mean, FLAT)
    add("argmax of all", torch.argmax, FLAT)
    for name in SCANS:
        for dim in (0, 1, 2):
            add(f"{name} over dimension {dim}", partial(getattr(torch, name), dim=dim), CUBE)
    add("masked cumsum", lambda x, m: (x * (m > 0)).cumsum(-1), ROWS, ROWS)
    add("cumsum of long rows", lambda x: x.cumsum(-1), (16, 1 << 19))
    add("cumsum int64", lambda x: x.cumsum(-1), of=integers(ROWS))
    add("sort of rows", lambda x: x.sort(-1, stable=True), (8192, 256))
    add("argsort of rows", lambda x: x.argsort(-1, stable=True), (8192, 100))


# --- norms and softmax -----------------------------------------------------------------------------------------------
def rms_norm(x: Any, w: Any, dim: int) -> Any:
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    return x * torch.rsqrt((x * x).mean(dim, keepdim=True) + 1e-5) * w.view(shape)


def norms() -> None:
    for dim in (0, 1, 2):
        add(f"softmax over dimension {dim}", partial(F.softmax, dim=dim), CUBE)
        add(f"log_softmax over dimension {dim}", partial(F.log_softmax, dim=dim), CUBE)
        add(f"normalize over dimension {dim}", partial(F.normalize, dim=dim), CUBE)
        width = CUBE[dim]
        add(f"rms_norm over dimension {dim}", partial(rms_norm, dim=dim), CUBE, (width,))
    for rows, width in ((8192, 1024), (2048, 4096), (1000, 3000), (512, 16384), (32768, 256)):
        add(
            f"layer_norm {rows}x{width}",
            lambda x, w, b: F.layer_norm(x, w.shape, w, b),
            (rows, width),
            (width,),
            (width,),
        )
        add(f"softmax {rows}x{width}", partial(F.softmax, dim=-1), (rows, width))
    add("softmax with temperature", lambda x: F.softmax(x.float() / 0.7, -1).to(x.dtype), ROWS)
    add("masked softmax", lambda x, m: F.softmax(x.masked_fill(m > 0, -1e9), -1), ROWS, ROWS)
    add("layer_norm of images", lambda x: F.layer_norm(x, x.shape[1:]), IMAGE)
    add("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), IMAGE, (32,), (32,))
    add("instance_norm", lambda x: F.instance_norm(x), IMAGE)
    add(
        "batch_norm",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        IMAGE,
        (32,),
        (32,),
    )
    add("batch_norm in inference", lambda x, m, v: F.batch_norm(x, m, v.abs()), IMAGE, (32,), (32,))
    add("local_response_norm", lambda x: F.local_response_norm(x, 5), IMAGE)
    add("add and layer_norm", lambda x, y: F.layer_norm(x + y, x.shape[1:]), ROWS, ROWS)


# --- windows ---------------------------------------------------------------------------------------------------------
VOLUME, SIGNAL, SMALL = (8, 16, 32, 48, 48), (64, 128, 1024), (16, 32, 64, 64)


def windows() -> None:
    for n, shape in ((1, SIGNAL), (2, IMAGE), (3, VOLUME)):
        largest, mean = getattr(F, f"max_pool{n}d"), getattr(F, f"avg_pool{n}d")
        for size, step, pad in ((2, 2, 0), (3, 2, 1), (3, 1, 1)):
            add(
                f"max_pool{n}d {size}/{step}",
                partial(largest, kernel_size=size, stride=step, padding=pad),
                shape,
            )
            add(
                f"max_pool{n}d {size}/{step} with indices",
                partial(largest, kernel_size=size, stride=step, padding=pad, return_indices=True),
                shape,
            )
            add(
                f"avg_pool{n}d {size}/{step}",
                partial(mean, kernel_size=size, stride=step, padding=pad),
                shape,
            )
    add("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 7), IMAGE)
    add("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 16), IMAGE)
    add("global average", lambda x: x.mean((2, 3)), IMAGE)
    add("lp_pool2d", lambda x: F.lp_pool2d(x, 2, 3, 2), IMAGE)
    for mode, corners in (("nearest", None), ("bilinear", False), ("bicubic", False)):
        for factor in (2, 0.5):
            scaled = partial(F.interpolate, scale_factor=factor, mode=mode, align_corners=corners)
            add(f"interpolate {mode} {factor}", scaled, SMALL if factor == 2 else IMAGE)
    add(
        "interpolate linear",
        lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
        (64, 64, 1024),
    )
    add(
        "interpolate trilinear",
        lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
        (8, 8, 16, 32, 32),
    )
    for mode in ("constant", "reflect", "replicate", "circular"):
        add(f"pad {mode}", partial(F.pad, pad=(2, 2, 2, 2), mode=mode), IMAGE)
    add("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2) * 2, IMAGE)
    add("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2) * 2, IMAGE)
    add("unfold", lambda x: F.unfold(x, 3, padding=1) * 2, (8, 16, 64, 64))
    add(
        "grid_sample",
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        SMALL,
        (16, 64, 64, 2),
    )
    add("blur", lambda x: sum(x[..., i : 122 + i] for i in range(5)) / 5, IMAGE)
    add(
        "laplacian",
        lambda x: (
            x[..., 1:-1, 1:-1] * 4
            - x[..., 2:, 1:-1]
            - x[..., :-2, 1:-1]
            - x[..., 1:-1, 2:]
            - x[..., 1:-1, :-2]
        ),
        IMAGE,
    )


# --- gathers, scatters, copies ---------------------------------------------------------------------------------------
def zeros_like_rows(x: Any) -> Any:
    return torch.zeros(ROWS, dtype=x.dtype, device=x.device)


def movements() -> None:
    add("embedding", lambda w, i: F.embedding(i, w), of=with_indices(32000, (8192,), (32000, 1024)))
    add("gather", lambda x, i: x.gather(1, i), of=with_indices(2048, ROWS, ROWS))
    add("index_select", lambda x, i: x.index_select(0, i) * 2, of=with_indices(4096, (4096,), ROWS))
    add("index columns", lambda x, i: x[:, i] * 2, of=with_indices(2048, (2048,), ROWS))
    add(
        "index_add",
        lambda x, i: zeros_like_rows(x).index_add(0, i, x),
        of=with_indices(4096, (4096,), ROWS),
    )
    add(
        "scatter_add",
        lambda x, i: zeros_like_rows(x).scatter_add(1, i, x),
        of=with_indices(2048, ROWS, ROWS),
    )
    add(
        "scatter",
        lambda x, i: zeros_like_rows(x).scatter(1, i, x),
        of=with_indices(2048, ROWS, ROWS),
    )
    add(
        "index_put accumulate",
        lambda x, i: zeros_like_rows(x).index_put((i,), x, accumulate=True),
        of=with_indices(4096, (4096,), ROWS),
    )
    add("one_hot", lambda i: F.one_hot(i, 512), of=lambda _: [indices(512, 16384)])
    add("bucketize", lambda x, b: torch.bucketize(x, b), FLAT, (256,))
    add("searchsorted", lambda b, x: torch.searchsorted(b, x), (4096, 64), (4096, 2048))
    add("transpose", lambda x: x.t().contiguous() * 2, ROWS)
    add("permute 0213", lambda x: x.permute(0, 2, 1, 3).contiguous() * 2, IMAGE)
    add("permute 0231", lambda x: x.permute(0, 2, 3, 1).contiguous() * 2, IMAGE)
    add("permute 210", lambda x: x.permute(2, 1, 0).contiguous() * 2, CUBE)
    add("add of a transposed", lambda x, y: x + y.t(), (2048, 2048), (2048, 2048))
    add("cat columns", lambda x, y: torch.cat([x, y * 2], 1), ROWS, ROWS)
    add("stack", lambda x, y: torch.stack([x, y * 2], -1), ROWS, ROWS)
    add("chunk and multiply", lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1], ROWS)
    add("roll", lambda x: x.roll(3, -1) * 2, ROWS)
    add("flip", lambda x: x.flip(-1) * 2, ROWS)
    add("tril", lambda x: x.tril(), (2048, 4096))
    add("triu", lambda x: x.triu(1) * 2, (2048, 4096))
    add("diagonal", lambda x: x.diagonal(dim1=-2, dim2=-1).sum(-1), (64, 256, 256))
    add("masked_fill", lambda x, m: x.masked_fill(m > 0, 0.5), FLAT, FLAT)
    add("repeat_interleave", lambda x: x.repeat_interleave(2, -1) * 2, ROWS)
    add("repeat", lambda x: x.repeat(2, 2) * 2, (2048, 1024))
    add("strided slice", lambda x: x[:, ::2] * 2, ROWS)
    add("rotary", rotary, (8, 16, 512, 128), (512, 64))
    add("outer difference", lambda x, y: (x[:, None] - y[None]).abs(), (2048,), (4096,))
    add(
        "pairwise distance",
        lambda x, y: (x[:, None] - y[None]).square().sum(-1),
        (512, 128),
        (512, 128),
    )
    add("arange and grid", lambda x: x + torch.arange(2048, device=x.device), ROWS)


def rotary(x: Any, angle: Any) -> Any:
    a, b = x.chunk(2, -1)
    c, s = angle.cos(), angle.sin()
    return torch.cat([a * c - b * s, b * c + a * s], -1)


# --- losses, random numbers ------------------------------------------------------------------------------------------
LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss kl_div soft_margin_loss poisson_nll_loss"


def losses() -> None:
    for name in LOSSES.split():
        add(name, getattr(F, name), ROWS, ROWS)
    add(
        "kl_div of rows",
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
        ROWS,
        ROWS,
    )
    add(
        "binary_cross_entropy",
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
        ROWS,
        ROWS,
    )
    add(
        "binary_cross_entropy_with_logits",
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        ROWS,
        ROWS,
    )
    add("cross_entropy", F.cross_entropy, of=with_indices(2048, (4096,), ROWS))
    add(
        "cross_entropy of a vocabulary",
        F.cross_entropy,
        of=with_indices(32000, (1024,), (1024, 32000)),
    )
    add(
        "cross_entropy with smoothing",
        partial(F.cross_entropy, label_smoothing=0.1),
        of=with_indices(2048, (4096,), ROWS),
    )
    add("cross_entropy of images", F.cross_entropy, of=with_indices(32, (16, 128, 128), IMAGE))
    add("nll_loss", lambda x, i: F.nll_loss(x, i), of=with_indices(2048, (4096,), ROWS))
    add("cosine_similarity", F.cosine_similarity, ROWS, ROWS)
    add(
        "cosine_embedding_loss",
        lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(4096, device=x.device)),
        ROWS,
        ROWS,
    )
    add("triplet_margin_loss", F.triplet_margin_loss, ROWS, ROWS, ROWS)
    add(
        "gaussian_nll_loss",
        lambda x, y, v: F.gaussian_nll_loss(x, y, v.square() + 0.1),
        ROWS,
        ROWS,
        ROWS,
    )
    add("hinge_embedding_loss", lambda x, y: F.hinge_embedding_loss(x, y.sign()), ROWS, ROWS)
    add(
        "focal loss",
        lambda x, y: ((1 - torch.exp(-F.mse_loss(x, y, reduction="none"))) ** 2).mean(),
        ROWS,
        ROWS,
    )
    add("dropout", partial(F.dropout, p=0.1), ROWS)
    add("rand_like", lambda x: torch.rand_like(x) + x, ROWS)
    add("randn_like", lambda x: torch.randn_like(x) + x, ROWS)
    add("bernoulli", lambda x: torch.bernoulli(x.sigmoid()), ROWS)
    add("AdamW", adamw, FLAT, FLAT, FLAT, FLAT)
    add("momentum", lambda p, g, m: (p - 0.1 * (0.9 * m + g), 0.9 * m + g), FLAT, FLAT, FLAT)


def adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    v = v.abs()
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p * 0.999 - 0.01 * m / (v.sqrt() + 1e-8), m, v


for _fill in (pointwise, reductions, norms, windows, movements, losses):
    _fill()


def made(name: str, dtype: torch.dtype, training: bool) -> tuple[Callable[..., Any], list[Any]]:
    """The function, and its tensors; floating-point ones want gradients in `training`."""
    function, inputs = OPERATIONS[name]
    values = inputs(dtype)
    for x in values:
        x.requires_grad_(training and x.is_floating_point())
    return function, values


def outputs(found: Any) -> list[Any]:
    """The results that a gradient can go through."""
    found = found if isinstance(found, tuple) else (found,)
    return [x for x in found if isinstance(x, torch.Tensor) and x.requires_grad]
