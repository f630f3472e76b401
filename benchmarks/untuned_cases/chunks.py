"""Linear attention and state spaces chunk by chunk: two to four products in a loop; `tessera` may be Triton."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from untuned_cases.kit import DEVICE, Problem, Problems, empty, normal, tiles

import tessera
import tessera.language as tl


@tessera.jit
def linear_attention(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, T, D: tl.constexpr, C: tl.constexpr, BV: tl.constexpr
):
    """Causal, without softmax; four products a chunk: scores, their product with values, the state's part, its step."""
    i_v, head = tl.program_id(0), tl.program_id(1)
    offs_d, offs_v, offs_c = tl.arange(0, D), i_v * BV + tl.arange(0, BV), tl.arange(0, C)
    causal = offs_c[:, None] >= offs_c[None, :]
    h = tl.zeros([D, BV], dtype=tl.float32)
    for t in range(0, T, C):
        rows = head * T + t + offs_c
        q = tl.load(q_ptr + rows[:, None] * D + offs_d[None, :])
        k = tl.load(k_ptr + rows[None, :] * D + offs_d[:, None])
        v = tl.load(v_ptr + rows[:, None] * D + offs_v[None, :])
        q = (q * scale).to(q.dtype)
        s = tl.dot(q, k)
        s = tl.where(causal, s, 0.0)
        o = tl.dot(s.to(v.dtype), v)
        o += tl.dot(q, h.to(q.dtype))
        h += tl.dot(k, v)
        tl.store(o_ptr + rows[:, None] * D + offs_v[None, :], o.to(o_ptr.dtype.element_ty))


@tessera.jit
def state_space(
    x_ptr, dt_ptr, a_ptr, b_ptr, c_ptr, y_ptr, T, H: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """A scan whose state decays: y = (c b.T * decay) (dt x) + c h * decay; h = h * decay + b.T (dt x)."""
    head, batch = tl.program_id(0), tl.program_id(1)
    offs_c, offs_p, offs_n = tl.arange(0, C), tl.arange(0, P), tl.arange(0, N)
    a = tl.load(a_ptr + head)
    h = tl.zeros([N, P], dtype=tl.float32)
    for t in range(0, T, C):
        rows = batch * T + t + offs_c
        dt = tl.load(dt_ptr + rows * H + head).to(tl.float32)
        cum = tl.cumsum(dt * a, axis=0)
        total = tl.sum(dt * a, axis=0)
        x = tl.load(x_ptr + (rows[:, None] * H + head) * P + offs_p[None, :])
        b = tl.load(b_ptr + rows[:, None] * N + offs_n[None, :])
        c = tl.load(c_ptr + rows[:, None] * N + offs_n[None, :])
        xdt = (x * dt[:, None]).to(x.dtype)
        cb = tl.dot(c, tl.trans(b))
        decay = tl.exp(tl.minimum(cum[:, None] - cum[None, :], 0.0))
        cb = tl.where(offs_c[:, None] >= offs_c[None, :], cb * decay, 0.0)
        y = tl.dot(c, h.to(c.dtype)) * tl.exp(cum)[:, None]
        y = tl.dot(cb.to(x.dtype), xdt, y)
        rest = (b * tl.exp(total - cum)[:, None]).to(b.dtype)
        h = h * tl.exp(total) + tl.dot(tl.trans(rest), xdt)
        at = (rows[:, None] * H + head) * P + offs_p[None, :]
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty))


@tessera.jit
def delta_states(
    k_ptr, w_ptr, u_ptr, new_ptr, h_ptr, T, D: tl.constexpr, C: tl.constexpr, BV: tl.constexpr
):
    """The delta rule's states, each stored before its chunk: new = u - w h; h = h + k.T new."""
    i_v, head = tl.program_id(0), tl.program_id(1)
    offs_d, offs_v, offs_c = tl.arange(0, D), i_v * BV + tl.arange(0, BV), tl.arange(0, C)
    h = tl.zeros([D, BV], dtype=tl.float32)
    for i_t in range(tl.cdiv(T, C)):
        at = (head * tl.cdiv(T, C) + i_t) * D * D + offs_d[:, None] * D + offs_v[None, :]
        tl.store(h_ptr + at, h.to(h_ptr.dtype.element_ty))
        rows = head * T + i_t * C + offs_c
        w = tl.load(w_ptr + rows[:, None] * D + offs_d[None, :])
        u = tl.load(u_ptr + rows[:, None] * D + offs_v[None, :])
        k = tl.load(k_ptr + rows[None, :] * D + offs_d[:, None])
        new = u - tl.dot(w, h.to(w.dtype))
        tl.store(new_ptr + rows[:, None] * D + offs_v[None, :], new.to(new_ptr.dtype.element_ty))
        h += tl.dot(k, new.to(k.dtype))


@tessera.jit
def chunk_outputs(
    q_ptr, k_ptr, v_ptr, h_ptr, o_ptr, scale, T, D: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """o = q h + (q k.T, causal) v for one chunk: two products in a loop over the keys' columns."""
    i_v, i_t, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    offs_v, offs_c = i_v * BV + tl.arange(0, BV), tl.arange(0, C)
    rows = head * T + i_t * C + offs_c
    state = h_ptr + (head * tl.cdiv(T, C) + i_t) * D * D
    o = tl.zeros([C, BV], dtype=tl.float32)
    s = tl.zeros([C, C], dtype=tl.float32)
    for i_k in range(tl.cdiv(D, BK)):
        offs_k = i_k * BK + tl.arange(0, BK)
        q = tl.load(q_ptr + rows[:, None] * D + offs_k[None, :])
        k = tl.load(k_ptr + rows[None, :] * D + offs_k[:, None])
        h = tl.load(state + offs_k[:, None] * D + offs_v[None, :])
        o += tl.dot(q, h)
        s += tl.dot(q, k)
    s = tl.where(offs_c[:, None] >= offs_c[None, :], s, 0.0)
    v = tl.load(v_ptr + rows[:, None] * D + offs_v[None, :])
    o = (o + tl.dot(s.to(v.dtype), v)) * scale
    tl.store(o_ptr + rows[:, None] * D + offs_v[None, :], o.to(o_ptr.dtype.element_ty))


def case(
    what: str,
    shape: str,
    work: float,
    configs: Any,
    launch: Any,
    found: Any,
    wanted: Any,
    tolerance: float = 0.01,
) -> Problem:
    return Problem(
        what, shape, "fp16", work, "TFLOP/s", configs, launch, found, wanted, tolerance=tolerance
    )


def sizes(small: bool) -> tuple[int, int]:
    """Heads and tokens."""
    return (2, 384) if small else (128, 4096)


def attention_without_softmax(what: str, small: bool, D: int) -> Problem:
    (H, T), scale = sizes(small), D**-0.5
    q, k, v = (normal(H, T, D, scale=0.5) for _ in range(3))
    o = empty(H, T, D)

    def launch(kernels: Any, config: Any) -> Any:
        grid = (D // config["BV"], H)
        return lambda: kernels.linear_attention[grid](q, k, v, o, scale, T, D, **config)

    configs = tiles(
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (64, 32, 4, 3),
        (128, 64, 8, 2),
        names="C BV num_warps num_stages",
    )

    def wanted() -> Any:
        return [(q[-1].float() @ k[-1].float().T * scale).tril() @ v[-1].float()]

    return case(what, f"{H}x{T}x{D}", 8.0 * H * T * 64 * D, configs, launch, [o[-1]], wanted)


def selective_scan(what: str, small: bool) -> Problem:
    B, H, T, P, N = (2, 2, 384, 64, 128) if small else (8, 32, 4096, 64, 128)
    x, b, c = normal(B, T, H, P), normal(B, T, N, scale=0.3), normal(B, T, N, scale=0.3)
    dt, a = torch.rand(B, T, H, device=DEVICE) * 0.1, -torch.rand(H, device=DEVICE) - 0.1
    y = empty(B, T, H, P)

    def launch(kernels: Any, config: Any) -> Any:
        return lambda: kernels.state_space[(H, B)](x, dt, a, b, c, y, T, H, P, N, **config)

    def wanted() -> Any:
        cum = (dt[-1, :, -1] * a[-1]).double().cumsum(0)
        decay = torch.exp(cum[:, None] - cum[None, :]).tril().float()
        scores = (c[-1].float() @ b[-1].float().T) * decay
        return [scores.tril() @ (x[-1, :, -1].float() * dt[-1, :, -1, None])]

    configs = tiles((64, 4, 2), (64, 4, 3), (128, 8, 2), (64, 8, 2), names="C num_warps num_stages")
    work = 2.0 * B * H * T * (64 * N + 64 * P + 2 * N * P)
    return case(what, f"{B}x{H}x{T}x{P}x{N}", work, configs, launch, [y[-1, :, -1]], wanted)


def delta_rule(what: str, small: bool, D: int) -> Problem:
    H, T = sizes(small)
    k, u = (normal(H, T, D, scale=0.1) for _ in range(2))
    w = k * 0.25  # so that no chunk enlarges the state: 1 - w.T k has eigenvalues from 0 to 1
    new, h = empty(H, T, D), empty(H, T // 64, D, D)

    def launch(kernels: Any, config: Any) -> Any:
        grid = (D // config["BV"], H)
        return lambda: kernels.delta_states[grid](k, w, u, new, h, T, D, 64, **config)

    def wanted() -> Any:
        state, states, changed = torch.zeros(D, D, device=DEVICE), [], []
        for t in range(0, T, 64):
            states.append(state)
            part = slice(t, t + 64)
            changed.append(u[-1, part].float() - w[-1, part].float() @ state)
            state = state + k[-1, part].float().T @ changed[-1]
        return [torch.cat(changed), torch.stack(states)]

    configs = tiles((64, 4, 2), (64, 4, 3), (32, 4, 3), (128, 8, 2), names="BV num_warps num_stages")  # fmt: skip
    return case(what, f"{H}x{T}x{D}", 4.0 * H * T * D * D, configs, launch, [new[-1], h[-1]], wanted, 0.03)  # fmt: skip


def outputs(what: str, small: bool, D: int) -> Problem:
    (H, T), C = sizes(small), 64
    q, k, v = (normal(H, T, D, scale=0.5) for _ in range(3))
    h, o, scale = normal(H, T // C, D, D), empty(H, T, D), D**-0.5

    def launch(kernels: Any, config: Any) -> Any:
        grid = (D // config["BV"], T // C, H)
        return lambda: kernels.chunk_outputs[grid](q, k, v, h, o, scale, T, D, C, **config)

    def wanted() -> Any:
        last = [t[-1].float().view(T // C, C, D) for t in (q, k, v)]
        scores = (last[0] @ last[1].transpose(1, 2)).tril()
        return [((scores @ last[2] + last[0] @ h[-1].float()) * scale).view(T, D)]

    configs = tiles(
        (64, 64, 4, 3),
        (64, 128, 4, 2),
        (32, 64, 4, 3),
        (128, 128, 8, 2),
        names="BK BV num_warps num_stages",
    )
    return case(what, f"{H}x{T}x{D}", 2.0 * H * T * D * (2 * C + D), configs, launch, [o[-1]], wanted)  # fmt: skip


def problems(small: bool) -> Problems:
    for D in (64, 128):
        name = "linear attention, chunks, four products"
        yield f"{name}, d{D}", partial(attention_without_softmax, name, small, D)
    yield (
        "state space, chunks, four products",
        partial(selective_scan, "state space, chunks, four products", small),
    )
    yield (
        "delta rule, states of chunks, two products",
        partial(delta_rule, "delta rule, states of chunks, two products", small, 128),
    )
    yield (
        "linear attention, outputs of chunks, three products",
        partial(outputs, "linear attention, outputs of chunks, three products", small, 128),
    )
