"""Functions of Liger-Kernel, flash-linear-attention and others, with inputs of the sizes that models have.

`CASES` has by name what to call, and how its inputs are made; gems_cases.py adds FlagGems.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

ROWS, COLUMNS, HIDDEN, VOCABULARY = 4096, 2048, 4096, 32000
BATCH, LENGTH, HEADS, HEAD = 4, 2048, 8, 128


@dataclass
class Case:
    """`below`: what integers must stay below. `training`: whether gradients are wanted."""

    function: str  # "module:name"
    inputs: Callable[[Any], list[Any]]
    options: dict[str, Any]
    below: int | None = None
    training: bool = True

    def call(self) -> Callable[..., Any]:
        module, name = self.function.split(":")
        return partial(getattr(importlib.import_module(module), name), **self.options)


CASES: dict[str, Case] = {}


def add(
    library: str, function: str, *shapes: Any, below: int | None = None, training: bool = True, **options: Any
) -> None:  # fmt: skip
    """A shape is a tuple, of the dtype asked for; ("int", *shape) and the like of another; else a value."""
    name = f"{library.split('.')[0]} {function}"
    while name in CASES:
        name += "'"
    CASES[name] = Case(f"{library}:{function}", partial(_made, shapes), options, below, training)


def _made(shapes: tuple[Any, ...], dtype: Any) -> list[Any]:
    return [_one(s, dtype) for s in shapes]


def _one(shape: Any, dtype: Any) -> Any:
    if isinstance(shape, list):
        return [_one(s, dtype) for s in shape]
    if not isinstance(shape, tuple):
        return shape
    if shape and isinstance(shape[0], torch.dtype):
        return torch.empty(shape[1:], dtype=shape[0])
    return torch.empty(shape, dtype=dtype)


I64, I32, F32, BOOL = torch.int64, torch.int32, torch.float32, torch.bool

# --- Liger-Kernel ----------------------------------------------------------------------------------------------------
liger = partial(add, "liger_kernel.transformers.functional")
X, W = (BATCH, LENGTH, HIDDEN), (HIDDEN,)
LOGITS, TARGETS = (ROWS, VOCABULARY), (I64, ROWS)
liger("liger_rms_norm", X, W, 1e-6)
liger("liger_rms_norm", X, W, 1e-6, casting_mode="gemma", offset=1.0)
liger("liger_fused_add_rms_norm", X, X, W, 1e-6)
liger("liger_layer_norm", X, W, W, 1e-6)
liger("liger_group_norm", (16, 256, 1024), (256,), (256,), 256, 32, 1e-5)
liger("liger_poly_norm", X, (3,), (1,))
liger("liger_dyt", X, (1,), W, W)
liger("liger_relu_squared", X)
for width in (HIDDEN, 11008):
    liger("liger_swiglu", (ROWS, width), (ROWS, width))
    liger("liger_geglu", (ROWS, width), (ROWS, width))
for width in (COLUMNS, 16384):
    liger("liger_softmax", (ROWS, width))
    liger("liger_sparsemax", (ROWS, width))
for width in (VOCABULARY, 128256):
    liger("liger_cross_entropy", (1024, width), (I64, 1024), below=width)
    liger("liger_jsd", (1024, width), (1024, width))
    liger("liger_kl_div", (1024, width), (1024, width))
    liger("liger_tvd", (1024, width), (1024, width))
liger(
    "liger_cross_entropy",
    LOGITS,
    TARGETS,
    below=VOCABULARY,
    label_smoothing=0.1,
    lse_square_scale=1e-4,
    softcap=30.0,
)
liger(
    "liger_fused_linear_cross_entropy",
    (1024, 1024),
    (VOCABULARY, 1024),
    (I64, 1024),
    below=VOCABULARY,
)
liger("liger_fused_linear_jsd", (512, 1024), (8192, 1024), (512, 1024), (8192, 1024))
liger(
    "liger_rope",
    (BATCH, 32, LENGTH, HEAD),
    (BATCH, 8, LENGTH, HEAD),
    (1, LENGTH, HEAD),
    (1, LENGTH, HEAD),
)
liger("liger_multi_token_attention", (2, 8, 512, 512), (8, 8, 3, 3))
liger("liger_fused_neighborhood_attention", (2, 8, 512, 64), (2, 8, 512, 64), (2, 8, 512, 64))
liger("liger_attn_res", (4, BATCH, 512, 1024), (1024,), (1024,))

# --- flash-linear-attention ------------------------------------------------------------------------------------------
Q, G, SCALAR = (
    (BATCH, LENGTH, HEADS, HEAD),
    (F32, BATCH, LENGTH, HEADS, HEAD),
    (F32, BATCH, LENGTH, HEADS),
)
SMALL = (BATCH, LENGTH, HEADS, 64)


def fla(module: str, function: str, *shapes: Any, **options: Any) -> None:
    add(f"fla.{module}", function, *shapes, **options)


fla("ops.gla", "chunk_gla", Q, Q, Q, G)
fla("ops.gla", "fused_recurrent_gla", SMALL, SMALL, SMALL, (F32, *SMALL))
fla("ops.simple_gla", "chunk_simple_gla", Q, Q, Q, SCALAR)
fla("ops.simple_gla", "parallel_simple_gla", Q, Q, Q, SCALAR)
fla("ops.simple_gla", "fused_recurrent_simple_gla", SMALL, SMALL, SMALL, SCALAR)
fla("ops.retention", "chunk_retention", Q, Q, Q)
fla("ops.retention", "parallel_retention", Q, Q, Q)
fla("ops.linear_attn", "chunk_linear_attn", Q, Q, Q, normalize=False)
fla("ops.linear_attn", "fused_chunk_linear_attn", Q, Q, Q, normalize=False)
fla("ops.delta_rule", "chunk_delta_rule", Q, Q, Q, SCALAR)
fla("ops.delta_rule", "fused_recurrent_delta_rule", SMALL, SMALL, SMALL, SCALAR)
fla("ops.gated_delta_rule", "chunk_gated_delta_rule", Q, Q, Q, SCALAR, SCALAR)
fla(
    "ops.gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    SMALL,
    SMALL,
    SMALL,
    SCALAR,
    None,
    None,
    SCALAR,
    training=False,
)
fla("ops.kda", "chunk_kda", Q, Q, Q, G, SCALAR)
fla("ops.gdn2", "chunk_gdn2", Q, Q, Q, G, Q, Q)
fla("ops.gsa", "chunk_gsa", Q, Q, Q, (BATCH, LENGTH, HEADS, 64), (F32, BATCH, LENGTH, HEADS, 64))
fla("ops.hgrn", "fused_recurrent_hgrn", (BATCH, LENGTH, 1024), (F32, BATCH, LENGTH, 1024))
fla("ops.hgrn", "chunk_hgrn", (BATCH, LENGTH, 1024), (F32, BATCH, LENGTH, 1024))
fla("ops.rwkv6", "chunk_rwkv6", Q, Q, Q, G, (HEADS, HEAD))
fla("ops.rwkv6", "fused_recurrent_rwkv6", SMALL, SMALL, SMALL, (F32, *SMALL), (HEADS, 64))
fla("ops.rwkv7", "chunk_rwkv7", SMALL, SMALL, SMALL, SMALL, SMALL, SMALL)
fla(
    "ops.rebased",
    "parallel_rebased",
    (BATCH, HEADS, LENGTH, 16),
    (BATCH, HEADS, LENGTH, 16),
    (BATCH, HEADS, LENGTH, 64),
)
fla("ops.based", "parallel_based", (BATCH, LENGTH, HEADS, 16), (BATCH, LENGTH, HEADS, 16), SMALL)
fla("ops.based", "fused_chunk_based", (BATCH, LENGTH, HEADS, 16), (BATCH, LENGTH, HEADS, 16), SMALL)
fla("ops.attn", "parallel_attn", Q, Q, Q)
fla("ops.attn", "parallel_attn", Q, Q, Q, SCALAR)
fla("ops.forgetting_attn", "parallel_forgetting_attn", Q, Q, Q, SCALAR)
fla("ops.stickbreaking_attn", "parallel_stickbreaking_attn", SMALL, SMALL, SMALL)
fla("ops.path_attn", "parallel_path_attn", SMALL, SMALL, SMALL, (F32, *SMALL), SCALAR, SCALAR)
fla("ops.comba", "chunk_comba", Q, Q, Q, Q, SCALAR, SCALAR)
fla("ops.mesa_net", "chunk_mesa_net", Q, Q, Q, SCALAR, SCALAR, (F32, HEADS, HEAD))
fla("ops.lightning_attn", "chunk_lightning_attn", Q, Q, Q, 1, 12)
fla(
    "ops.ttt",
    "chunk_ttt_linear",
    SMALL,
    SMALL,
    SMALL,
    (HEADS, 64),
    (HEADS, 64),
    (BATCH, LENGTH, HEADS, 1),
)
fla(
    "ops.gated_delta_product",
    "chunk_gated_delta_product",
    Q,
    (BATCH, 2 * LENGTH, HEADS, HEAD),
    (BATCH, 2 * LENGTH, HEADS, HEAD),
    SCALAR,
    (F32, BATCH, 2 * LENGTH, HEADS),
    2,
)
fla(
    "ops.nsa",
    "parallel_nsa",
    (1, 1024, 64, 64),
    (1, 1024, 4, 64),
    (1, 1024, 4, 64),
    (1, 1024, 64),
    (1, 1024, 64),
    (1, 1024, 64),
)
fla(
    "ops.log_linear_attn",
    "chunk_log_linear_attn",
    Q,
    (BATCH, LENGTH, 1, HEAD),
    (BATCH, LENGTH, 1, HEAD),
    SCALAR,
    (F32, BATCH, LENGTH, HEADS, 12),
)
for name in ("cumsum.chunk_local_cumsum", "cumsum.chunk_global_cumsum"):
    place, function = name.split(".")
    for shape in (SCALAR, G):
        fla(
            f"ops.utils.{place}",
            function,
            shape,
            *([64] if "local" in function else []),
            training=False,
        )
for shape in ((ROWS, COLUMNS), (ROWS, 512)):
    fla("ops.utils.softmax", "softmax_fwd", shape, training=False)
    fla("ops.utils.logsumexp", "logsumexp_fwd", shape, training=False)
fla("ops.utils.pooling", "mean_pooling", Q, 64)
fla("modules.layernorm", "layer_norm", (ROWS, COLUMNS), (COLUMNS,), (COLUMNS,))
fla("modules.layernorm", "rms_norm", (ROWS, COLUMNS), (COLUMNS,), None)
fla("modules.layernorm", "group_norm", (ROWS, COLUMNS), (COLUMNS,), (COLUMNS,), num_groups=8)
fla("modules.fused_norm_gate", "rms_norm_gated", (ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,), None)
fla(
    "modules.fused_norm_gate",
    "layer_norm_gated",
    (ROWS, COLUMNS),
    (ROWS, COLUMNS),
    (COLUMNS,),
    (COLUMNS,),
)
fla("modules.l2norm", "l2norm", Q)
fla("modules.rotary", "rotary_embedding", Q, (LENGTH, 64), (LENGTH, 64))
fla("modules.convolution", "causal_conv1d", (BATCH, LENGTH, 1024), (1024, 4), activation="silu")
fla("modules.token_shift", "token_shift", (BATCH, LENGTH, 1024))
fla("modules.grpo", "fused_grpo_loss", (4, 513, 32000), (4, 512), (I64, 4, 512), (4,), below=32000)
for name in ["sigmoid", "logsigmoid", "swish", "fast_gelu_impl"]:
    fla("modules.activations", name, (ROWS, COLUMNS))
fla("modules.activations", "swiglu", (ROWS, COLUMNS), (ROWS, COLUMNS))
fla("modules.activations", "swiglu_linear", (ROWS, COLUMNS), (ROWS, COLUMNS), (1024, COLUMNS), None)
fla(
    "modules.fused_cross_entropy",
    "cross_entropy_loss",
    (ROWS, VOCABULARY),
    (I64, ROWS),
    below=VOCABULARY,
)
fla(
    "modules.fused_linear_cross_entropy",
    "fused_linear_cross_entropy_loss",
    (1024, 1024),
    (I64, 1024),
    (VOCABULARY, 1024),
    below=VOCABULARY,
)
fla(
    "modules.fused_kl_div",
    "fused_kl_div_loss",
    (512, 1024),
    (512, 1024),
    (8192, 1024),
    (8192, 1024),
)

# --- others ----------------------------------------------------------------------------------------------------------
add(
    "lightning_attn.ops.triton.lightning_attn2",
    "lightning_attn2",
    (2, 8, LENGTH, HEAD),
    (2, 8, LENGTH, HEAD),
    (2, 8, LENGTH, HEAD),
    (F32, 8),
)
add(
    "mlstm_kernels.torch.chunkwise.triton_xl_chunk.fwbw",
    "mlstm_chunkwise__xl_chunk",
    *[(2, 8, LENGTH, HEAD)] * 3,
    *[(2, 8, LENGTH)] * 2,
)
add(
    "mlstm_kernels.torch.chunkwise.triton_limit_chunk.fwbw",
    "mlstm_chunkwise__limit_chunk",
    *[(2, 8, LENGTH, HEAD)] * 3,
    *[(2, 8, LENGTH)] * 2,
)
add(
    "mlstm_kernels.torch.chunkwise.triton_xl_chunk_siging.fwbw",
    "mlstm_siging_chunkwise__xl_chunk",
    *[(2, 8, LENGTH, HEAD)] * 3,
    *[(2, 8, LENGTH)] * 2,
)
add("conch.ops.activation.silu_and_mul", "silu_and_mul", (ROWS, 2 * COLUMNS), training=False)
add(
    "conch.ops.activation.gelu_tanh_and_mul",
    "gelu_tanh_and_mul",
    (ROWS, 2 * COLUMNS),
    training=False,
)
add("conch.ops.normalization.rms_norm", "rms_norm", (ROWS, HIDDEN), W, 1e-6, training=False)
add(
    "conch.ops.normalization.gemma_rms_norm",
    "gemma_rms_norm",
    (ROWS, HIDDEN),
    W,
    1e-6,
    training=False,
)
add("conch.ops.quantization.fp8", "scaled_fp8_quant", (ROWS, HIDDEN), training=False)
add("conch.ops.quantization.int8", "scaled_int8_quant", (ROWS, HIDDEN), training=False)
