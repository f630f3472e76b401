"""Kernel libraries as published, on tessera: results and gradients beside the libraries' own references or torch.

    pip install liger-kernel flash-linear-attention einops
    pip install --no-deps cut-cross-entropy lightning-attn mlstm-kernels
    python tests/compat/libraries.py [--device cuda] [--dtype bfloat16] [--only NAME] [--configs 1]

A row is a function of a library, what it should equal, and its inputs. `--configs` is how many configs each tuner
tries. A library that is not installed is left out and said so.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# isort: off
import tessera.compat  # noqa: F401  before anything that imports triton
import torch
import torch.nn.functional as F
import triton.runtime.autotuner as autotuner
# isort: on

TOLERANCE = {torch.float32: 5e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}
B, T, H, D = 2, 130, 3, 64  # batch, length (no multiple of a chunk), heads, dimension


@dataclass
class Row:
    """`ours(**inputs)` against `reference(**inputs)`; both give a tensor."""

    name: str
    ours: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: dict[str, Any]
    wide: tuple[str, ...] = ("g", "beta")  # inputs that stay in fp32
    dtypes: tuple[Any, ...] = (torch.float32, torch.bfloat16)


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def turned(x: Any) -> Any:
    return x.transpose(1, 2)


# --- Liger-Kernel ----------------------------------------------------------------------------------------
def liger() -> Iterator[Row]:
    ops = importlib.import_module("liger_kernel.transformers.functional")
    x, y, w, b = torch.randn(4, 37, 96), torch.randn(4, 37, 96), torch.randn(96), torch.randn(96)

    def rms(x: Any, w: Any) -> Any:
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w

    yield Row("RMS norm", lambda x, w: ops.liger_rms_norm(x, w, 1e-6), rms, {"x": x, "w": w})
    yield Row(
        "layer norm", lambda x, w, b: ops.liger_layer_norm(x, w, b, 1e-6),
        lambda x, w, b: F.layer_norm(x, (96,), w, b, 1e-6), {"x": x, "w": w, "b": b},
    )  # fmt: skip
    yield Row(
        "SwiGLU", lambda a, b: ops.liger_swiglu(a, b), lambda a, b: F.silu(a) * b, {"a": x, "b": y}
    )
    yield Row(
        "GeGLU",
        lambda a, b: ops.liger_geglu(a, b),
        lambda a, b: F.gelu(a, approximate="tanh") * b,
        {"a": x, "b": y},
    )
    yield Row("softmax", lambda x: ops.liger_softmax(x), lambda x: torch.softmax(x, -1), {"x": x})
    image, scale, shift = torch.randn(4, 32, 50), torch.randn(32), torch.randn(32)
    yield Row(
        "group norm", lambda x, w, b: ops.liger_group_norm(x, w, b, 32, 8, 1e-5),
        lambda x, w, b: F.group_norm(x, 8, w, b, 1e-5), {"x": image, "w": scale, "b": shift},
    )  # fmt: skip
    target = torch.randint(0, 1000, (64,))
    target[3] = -100
    logits, hidden, weight = torch.randn(64, 1000), torch.randn(64, 96), torch.randn(1000, 96)
    yield Row(
        "cross entropy", lambda x: ops.liger_cross_entropy(x, target),
        lambda x: F.cross_entropy(x.float(), target), {"x": logits},
    )  # fmt: skip
    yield Row(
        "linear and cross entropy", lambda h, w: ops.liger_fused_linear_cross_entropy(h, w, target),
        lambda h, w: F.cross_entropy(h @ w.T, target), {"h": hidden, "w": weight},
        dtypes=(torch.float32,),
    )  # fmt: skip
    guess, truth = torch.log_softmax(logits, -1), torch.softmax(torch.randn(64, 1000), -1)
    yield Row(
        "KL divergence", lambda p: ops.liger_kl_div(p, truth),
        lambda p: F.kl_div(p, truth, reduction="mean"), {"p": guess}, dtypes=(torch.float32,),
    )  # fmt: skip


# --- flash-linear-attention ------------------------------------------------------------------------------
def linear_attention() -> Iterator[Row]:
    q, k, v = (torch.randn(B, T, H, D) / 2 for _ in range(3))
    unit = F.normalize(k, dim=-1)
    gate, gates = F.logsigmoid(torch.randn(B, T, H)), F.logsigmoid(torch.randn(B, T, H, D))
    beta = torch.rand(B, T, H)
    qkv = {"q": q, "k": k, "v": v}
    table: list[tuple[str, str, str, dict[str, Any], bool]] = [
        ("simple_gla", "chunk_simple_gla fused_recurrent_simple_gla parallel_simple_gla", "naive_recurrent_simple_gla",
         {**qkv, "g": gate}, False),
        ("retention", "chunk_retention parallel_retention", "naive_retention", qkv, True),
        ("attn", "parallel_attn", "naive_parallel_attn", qkv, False),
        ("forgetting_attn", "parallel_forgetting_attn", "naive_forgetting_attn", {**qkv, "g": gate}, False),
        ("stickbreaking_attn", "parallel_stickbreaking_attn", "naive_stickbreaking_attn", qkv, False),
        ("gated_delta_rule", "chunk_gated_delta_rule", "naive_recurrent_gated_delta_rule",
         {"q": q, "k": unit, "v": v, "g": gate, "beta": beta}, False),
        ("kda", "chunk_kda", "naive_recurrent_kda", {"q": unit, "k": unit, "v": v, "g": gates, "beta": beta}, False),
        ("gdn2", "chunk_gdn2", "naive_recurrent_gdn2",
         {"q": unit, "k": unit, "v": v, "g": gates, "b": torch.rand(B, T, H, D), "w": torch.rand(B, T, H, D)}, False),
    ]  # fmt: skip
    for module, names, reference, inputs, heads_first in table:
        found = importlib.import_module(f"fla.ops.{module}")
        naive = getattr(importlib.import_module(f"fla.ops.{module}.naive"), reference)
        for name in names.split():
            yield Row(name, named(getattr(found, name)), named(naive, heads_first), inputs)
    gla, linear = (
        importlib.import_module("fla.ops.gla"),
        importlib.import_module("fla.ops.linear_attn"),
    )
    naive_gla = importlib.import_module("fla.ops.gla.naive").naive_recurrent_gla
    naive_linear = importlib.import_module("fla.ops.linear_attn.naive").naive_recurrent_linear_attn
    for fn in (gla.chunk_gla, gla.fused_recurrent_gla):
        yield Row(fn.__name__, in_order(fn), in_order(naive_gla), {**qkv, "g": gates})
    for fn in (linear.chunk_linear_attn, linear.fused_chunk_linear_attn):
        yield Row(fn.__name__, in_order(fn, normalize=False), in_order(naive_linear), qkv)
    slots = {**qkv, "s": torch.randn(B, T, H, 16), "g": F.logsigmoid(torch.randn(B, T, H, 16))}
    gsa = importlib.import_module("fla.ops.gsa")
    yield Row("chunk_gsa", named(gsa.chunk_gsa), named(gsa.fused_recurrent_gsa), slots)
    rwkv = importlib.import_module("fla.ops.rwkv6")
    decay = -torch.exp(torch.randn(B, T, H, D) / 2 - 1)
    inputs = {"r": q, "k": k, "v": v, "w": decay, "u": torch.randn(H, D)}
    yield Row("chunk_rwkv6", named(rwkv.chunk_rwkv6), named(rwkv.fused_recurrent_rwkv6), inputs)


# --- losses, layers and attention of others ----------------------------------------------------------------
def cut_cross_entropy() -> Iterator[Row]:
    loss = importlib.import_module("cut_cross_entropy.linear_cross_entropy").linear_cross_entropy
    target = torch.randint(0, 500, (64,))
    target[3] = -100
    inputs = {"e": torch.randn(64, 128), "c": torch.randn(500, 128) / 5}
    half = (torch.bfloat16,)  # the library takes no other
    for cap in (None, 20.0):

        def wanted(e: Any, c: Any, cap: float | None = cap) -> Any:
            logits = e.float() @ c.float().T
            return F.cross_entropy(
                cap * torch.tanh(logits / cap) if cap else logits, target.to(e.device)
            )

        def ours(e: Any, c: Any, cap: float | None = cap) -> Any:
            return loss(e, c, target.to(e.device), softcap=cap, filter_eps=None)

        yield Row(f"cut cross entropy, cap {cap}", ours, wanted, inputs, dtypes=half)


def lightning_attn() -> Iterator[Row]:
    ours = importlib.import_module("lightning_attn.ops.triton.lightning_attn2").lightning_attn2
    slopes, apart = torch.rand(2) / 10, torch.arange(128)[:, None] - torch.arange(128)
    q, k, v = (torch.randn(2, 2, 128, 64) / 2 for _ in range(3))

    def wanted(q: Any, k: Any, v: Any) -> Any:
        decay = torch.exp(-slopes[:, None, None] * apart) * (apart >= 0)
        return ((q @ k.mT).float() * decay.to(q.device)).to(q.dtype) @ v

    fn = lambda q, k, v: ours(q, k, v, slopes.to(q.device))
    yield Row("lightning attention 2", fn, wanted, {"q": q, "k": k, "v": v})


def mlstm_kernels() -> Iterator[Row]:
    """Gradients leave the normaliser out, as a norm follows in the model: one follows here."""
    module = importlib.import_module("mlstm_kernels.torch.chunkwise.triton_xl_chunk.fwbw")

    def unit(x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))

    def ours(**inputs: Any) -> Any:
        kind = torch.float32
        return unit(
            module.mlstm_chunkwise__xl_chunk(**inputs, chunk_size=64, autocast_kernel_dtype=kind)
        )

    def wanted(q: Any, k: Any, v: Any, i: Any, f: Any) -> Any:
        forget, length = F.logsigmoid(f).cumsum(-1), q.shape[2]
        log = forget[..., :, None] - forget[..., None, :] + i[..., None, :]
        past = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        log = log.masked_fill(~past, -1e30)
        top = log.amax(-1, keepdim=True)
        s = q @ k.mT * q.shape[-1] ** -0.5 * torch.exp(log - top)
        return unit(s / torch.maximum(s.sum(-1, keepdim=True).abs(), torch.exp(-top)) @ v)

    inputs = {name: torch.randn(2, 2, 128, 64) for name in "qkv"}
    inputs |= {"i": torch.randn(2, 2, 128), "f": torch.randn(2, 2, 128) + 2}
    yield Row("mLSTM, chunkwise", ours, wanted, inputs, dtypes=(torch.float32,))


def named(fn: Callable[..., Any], heads_first: bool = False) -> Callable[..., Any]:
    def call(**inputs: Any) -> Any:
        if heads_first:
            return turned(first(fn(**{name: turned(x) for name, x in inputs.items()})))
        return first(fn(**inputs))

    return call


def in_order(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda **inputs: first(fn(*inputs.values(), **options))


LIBRARIES = {
    "liger_kernel": liger, "fla": linear_attention, "cut_cross_entropy": cut_cross_entropy,
    "lightning_attn": lightning_attn, "mlstm_kernels": mlstm_kernels,
}  # fmt: skip


# --- running ---------------------------------------------------------------------------------------------
def outcome(fn: Callable[..., Any], row: Row, dtype: Any, device: str) -> list[Any]:
    """The result, and the gradients of a weighted sum of it. Inputs are copies: some functions write over them."""
    inputs: dict[str, Any] = {}
    for name, x in row.inputs.items():
        kept = x.dtype if name in row.wide else dtype
        inputs[name] = x.clone().to(device, kept).requires_grad_()
    result = fn(**inputs)
    torch.manual_seed(1)
    (result * torch.randn(result.shape).to(result)).sum().backward()
    return [result.detach(), *(x.grad for x in inputs.values() if x.grad is not None)]


def distance(a: Any, b: Any) -> float:
    a, b = a.double(), b.double()
    return float((a - b).norm() / (b.norm() + 1e-9))


def check(row: Row, dtype: Any, device: str) -> bool:
    start = time.perf_counter()
    try:
        ours = outcome(row.ours, row, dtype, device)
        seconds = time.perf_counter() - start
        wanted = outcome(row.reference, row, dtype, device)
        apart = [distance(a, b) for a, b in zip(ours, wanted, strict=True)]
    except Exception as error:
        print(f"ERROR  {row.name}: {type(error).__name__}: {str(error).splitlines()[0]}")
        return False
    right = max(apart) < TOLERANCE[dtype]
    word = "equal" if right else "WRONG"
    print(f"{word}  {row.name:32} {max(apart):.1e}  {seconds:5.1f} s", flush=True)
    return right


def few_configs(count: int) -> None:
    """Tuners try the first `count` of their configs."""
    original = autotuner.Autotuner.__init__

    def init(self: Any, fn: Any, names: Any, configs: Any, *rest: Any, **more: Any) -> None:
        original(self, fn, names, list(configs)[:count], *rest, **more)

    autotuner.Autotuner.__init__ = init  # pyright: ignore[reportAttributeAccessIssue]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--only", default="")
    parser.add_argument("--configs", type=int, default=1)
    args = parser.parse_args()
    few_configs(args.configs)
    dtype, results = getattr(torch, args.dtype), []
    for library, rows in LIBRARIES.items():
        torch.manual_seed(0)
        if importlib.util.find_spec(library) is None:
            print(f"{library} is not installed: left out")
            continue
        wanted = [r for r in rows() if args.only in r.name and dtype in (*r.dtypes, torch.float16)]
        results += [check(row, dtype, args.device) for row in wanted]
    print(f"{sum(results)} of {len(results)} equal")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
