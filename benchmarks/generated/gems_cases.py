"""Operations of FlagGems, whose signatures are ATen's, with inputs of the sizes that models have."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from functools import partial

import torch

from generated.library_cases import BOOL, COLUMNS, F32, I32, I64, ROWS, VOCABULARY, add

gems = partial(add, "flag_gems.ops", training=False)
TILE, IMAGE, FLAT = (ROWS, COLUMNS), (16, 32, 128, 128), (1 << 23,)
for name in [
    "abs",
    "acos",
    "angle",
    "arcsinh",
    "atan",
    "ceil",
    "celu",
    "cos",
    "cosh",
    "elu",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "gelu",
    "hardsigmoid",
    "i0",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "log",
    "log10",
    "log1p_",
    "log_sigmoid",
    "logical_not",
    "logit",
    "nan_to_num",
    "neg",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "selu",
    "sigmoid",
    "signbit",
    "silu",
    "sin",
    "sinh_",
    "softplus",
    "softshrink",
    "sgn_",
    "special_i1",
    "special_i0e",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "digamma_",
    "asinh_",
    "arctanh_",
    "hardswish_",
    "glu",
]:
    gems(name, TILE)
for name in [
    "add",
    "sub",
    "mul",
    "true_divide",
    "maximum",
    "minimum",
    "atan2",
    "copysign",
    "fmin",
    "hypot",
    "logaddexp",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "pow_tensor_tensor",
    "remainder",
    "logical_and",
    "logical_or",
    "logical_xor",
    "isclose",
]:
    gems(name, TILE, TILE)
gems("add", TILE, (COLUMNS,))
gems("mul", TILE, (ROWS, 1))
gems("add", (COLUMNS, ROWS), TILE[::-1])
gems("add", TILE, 2.5)
gems("pow_tensor_scalar", TILE, 2.5)
gems("pow_scalar", 2.5, TILE)
for name in ["bitwise_and_tensor", "bitwise_or_tensor", "floor_divide", "remainder"]:
    for kind in (I32, I64):
        gems(name, (kind, *TILE), (kind, *TILE))
gems("bitwise_left_shift", (I32, *TILE), (I32, *TILE))
gems("div_mode", TILE, TILE, rounding_mode="floor")
gems("div_mode", TILE, TILE, rounding_mode="trunc")
for name in ["addcmul", "addcdiv", "lerp_tensor"]:
    gems(name, TILE, TILE, TILE)
gems("lerp_scalar", TILE, TILE, 0.3)
gems("where_self", (BOOL, *TILE), TILE, TILE)
gems("masked_fill", TILE, (BOOL, *TILE), 1.5)
gems("clamp", TILE, -0.5, 0.5)
gems("threshold", TILE, 0.1, 20.0)
for name in ["elu_backward", "gelu_backward", "sigmoid_backward", "silu_backward", "tanh_backward"]:
    gems(name, TILE, TILE, *([1.0, 1.0, 1.0, False] if name == "elu_backward" else []))
gems("threshold_backward", TILE, TILE, 0.1)
gems("prelu", IMAGE, (32,))
for name in [
    "sum",
    "mean",
    "prod",
    "max",
    "min",
    "amax",
    "all",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "std",
]:
    gems(name, TILE)
for name in ["sum_dim", "mean_dim", "amax"]:
    for dims in ([0], [1], [0, 2], [1, 2]):
        gems(name, (64, 256, 512), dims)
for name in [
    "all_dim",
    "any_dim",
    "max_dim",
    "min_dim",
    "argmax",
    "argmin",
    "prod_dim",
    "cumsum",
    "cummax",
    "cummin",
]:
    for dim in (0, 1, 2):
        gems(name, (64, 256, 512), dim)
gems("var_mean", TILE, [1])
gems("var_mean", TILE, [0])
gems("vector_norm", TILE, 2, [1])
gems("std", TILE, [1])
gems("normed_cumsum", TILE, -1)
gems("trace", (ROWS, ROWS))
for name in ["softmax", "log_softmax"]:
    for shape, dim in ((TILE, 1), ((ROWS, 1000), 1), ((64, 256, 512), 1), ((512, VOCABULARY), 1)):
        gems(name, shape, dim, False) if name == "softmax" else gems(name, shape, dim)
        gems(f"{name}_backward", shape, shape, dim, torch.float32)
gems("scaled_softmax_forward", (16, 8, 512, 512), 0.1)
for shape in (TILE, (ROWS, 1000), (ROWS, 5120)):
    gems("layer_norm", shape, [shape[1]], (shape[1],), (shape[1],))
    gems(
        "layer_norm_backward",
        shape,
        shape,
        [shape[1]],
        (F32, ROWS),
        (F32, ROWS),
        (shape[1],),
        (shape[1],),
    )
    gems("rms_norm_forward", shape, [shape[1]], (shape[1],))
gems("group_norm", IMAGE, (32,), (32,), 16, 32, 128 * 128, 8)
SMALL = (16, 256, 8, 8)  # the kernel of the weights' gradient takes all of an image in one tile
gems(
    "group_norm_backward", SMALL, SMALL, (16, 8), (16, 8), (256,), 16, 256, 64, 8, [True, True, True]
)  # fmt: skip
gems("batch_norm", IMAGE, (32,), (32,), training=False)
gems("weight_norm_interface", TILE, (ROWS, 1), 0)
for name in ["tril", "triu"]:
    gems(name, (ROWS, ROWS))
gems("flip", TILE, [1])
gems("roll", TILE, 7, 1)
gems("repeat", (512, COLUMNS), [8, 1])
gems("tile", (512, COLUMNS), [8, 1])
gems("cat", [TILE, TILE], 1)
gems("stack", [TILE, TILE], 1)
gems("hstack", [TILE, TILE])
gems("constant_pad_nd", IMAGE, [1, 1, 1, 1], 0.0)
gems("pad", IMAGE, [2, 2, 2, 2], "reflect")
gems("reflection_pad2d", IMAGE, (2, 2, 2, 2))
gems("diag_embed", (64, 1024))
gems("slice_scatter", TILE, (ROWS // 2, COLUMNS), 0, 0, ROWS // 2, 1)
gems("select_scatter", TILE, (COLUMNS,), 0, 5)
gems("contiguous", TILE[::-1])
gems("pixel_unshuffle", IMAGE, 2)
gems("embedding", (VOCABULARY, 1024), (I64, 16, 512), below=VOCABULARY)
gems("embedding_backward", (16, 512, 1024), (I64, 16, 512), VOCABULARY, below=VOCABULARY)
gems("index_select", TILE, 0, (I64, 2048), below=2048)
gems("index_select", TILE, 1, (I64, 1024), below=1024)
gems("gather", TILE, 1, (I64, *TILE), below=COLUMNS)
gems("gather", TILE, 0, (I64, *TILE), below=COLUMNS)
gems("scatter", TILE, 1, (I64, *TILE), TILE, below=COLUMNS)
gems("index_add", TILE, 0, (I64, 2048), (2048, COLUMNS), below=2048)
gems("index", TILE, [(I64, 2048)], below=2048)
gems("one_hot", (I64, ROWS), 128, below=128)
gems("isin", (I64, 1 << 20), (I64, 16))
gems("topk", TILE, 8)
gems("topk", (64, VOCABULARY), 64)
gems("sort", (512, 1024))
gems("sort_stable", (512, 4096), stable=True)
for n in (512, 1024, 4096):
    gems("mm", (n, n), (n, n))
    gems("addmm", (n,), (n, n), (n, n))
gems("mm", (16, 4096), (4096, 4096))
gems("bmm", (16, 512, 512), (16, 512, 512))
gems("baddbmm", (16, 512, 512), (16, 512, 512), (16, 512, 512))
gems("mv", (ROWS, ROWS), (ROWS,))
gems("addmv", (ROWS,), (ROWS, ROWS), (ROWS,))
gems("addr", TILE, (ROWS,), (COLUMNS,))
gems("dot", FLAT, FLAT)
gems("vdot", FLAT, FLAT)
gems("kron", (64, 64), (64, 64))
gems("conv2d", (8, 64, 56, 56), (64, 64, 3, 3), None, 1, 1)
gems("conv1d", (8, 64, 1024), (64, 64, 3), None, 1, 1)
gems("_conv_depthwise2d", (8, 64, 56, 56), (64, 1, 3, 3), [3, 3], None, [1, 1], [1, 1], [1, 1])
gems("max_pool2d_with_indices", IMAGE, [3, 3], [2, 2], [1, 1])
gems("avg_pool2d", IMAGE, [2, 2])
gems("upsample_nearest2d", (8, 32, 64, 64), [128, 128])
gems("upsample_bicubic2d", (8, 32, 64, 64), [128, 128], False)
gems("upsample_linear1d", (64, 32, 1024), [2048], False)
gems("_upsample_bicubic2d_aa", (8, 32, 64, 64), [128, 128])
gems("mse_loss", TILE, TILE)
gems("soft_margin_loss", TILE, TILE)
gems("nll_loss_forward", (ROWS, 1000), (I64, ROWS), below=1000)
gems("margin_ranking_loss", FLAT, FLAT, FLAT)
gems("scaled_dot_product_attention_forward", *[(4, 16, 1024, 64)] * 3)
gems("scaled_dot_product_attention_forward", *[(4, 16, 1024, 128)] * 3, is_causal=True)
gems("hadamard_transform", (ROWS, 1024))
gems("dropout", TILE, 0.3, True)
gems("rand", [ROWS, COLUMNS])
gems("randn", [ROWS, COLUMNS])
gems("full", [ROWS, COLUMNS], 2.0)
gems("arange", 1 << 22)
gems("linspace", 0.0, 1.0, 1 << 22)
gems("polar", (F32, *TILE), (F32, *TILE))
gems("quantile", (F32, 512, 1024), 0.5, 1)
gems("per_token_group_quant_fp8", TILE, 128)
add("flag_gems.fused", "silu_and_mul", TILE, TILE)
add("flag_gems.fused", "gelu_and_mul", TILE, TILE)
add(
    "flag_gems.fused",
    "skip_layer_norm",
    TILE,
    TILE,
    [COLUMNS],
    (COLUMNS,),
    (COLUMNS,),
    training=False,
)
add("flag_gems.fused", "fused_add_rms_norm", TILE, TILE, [COLUMNS], (COLUMNS,), training=False)
add("flag_gems.fused", "cross_entropy_loss", (ROWS, 1000), (I64, ROWS), below=1000)
add(
    "flag_gems.fused",
    "apply_rotary_pos_emb",
    (16, 512, 16, 128),
    (16, 512, 4, 128),
    (F32, 512, 64),
    (F32, 512, 64),
    training=False,
)
add("flag_gems.fused", "bincount", (I64, 1 << 20), None, 256, below=256, training=False)
add("flag_gems.fused", "weight_norm", (1024, 1024), (1024, 1), 0)
