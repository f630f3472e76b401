"""What becomes of an accumulator: bias, activation, residual, casts, and the ways to store it."""

from __future__ import annotations

from typing import Any

from tests.fuzz.generators.writer import EXACT, TL, Inexact

ENDINGS = ("bias", "rows", "relu", "leaky", "residual", "square", "half")
STORES = ("plain", "transposed", "split", "sum", "sum0", "max", "argmax", "atomic", "desc", "block")


def epilogue(k: Any) -> None:
    """Write the section "post" of the kernel `k`, a `Dots`."""
    for number, (acc, bound) in enumerate(k.sums):
        _finish(k, acc, bound, number)


def _most(k: Any, kind: str) -> float:
    """Up to where sums must be exact."""
    return EXACT[kind] if k.f["data"] == "exact" else float("inf")


def _finish(k: Any, acc: str, bound: float, number: int) -> None:
    f, w = k.f, k.w
    rows = f["m"]
    vector = f["add"] == "fresh"
    cols = 1 if vector else (f["d"] if k.chain else f["n"])
    col = "rd" if k.chain else "rn"
    kind = k.acc_kind
    view = "" if vector else "[:, None]"
    if f["lower"] and not vector:  # rows and columns are counted from one place, in 64 bits
        w.line("post", f"at = pm.to(tl.int64) * {rows}")
        w.line("post", f"from_rows = at + tl.arange(0, {rows})[:, None]")
        w.line(
            "post", f"{acc} = tl.where(from_rows >= at + tl.arange(0, {cols})[None, :], {acc}, 0)"
        )
    for (ending,) in f["endings"]:
        name = f"{acc}_{ending}_ptr"
        known = name in w.order
        if ending in ("bias", "residual") and vector:
            continue
        if ending == "bias":
            size = cols * (1 if k.chain else k.gn)
            if not known:
                w.array(name, kind, size)
            w.line("post", f"{acc} += tl.load({name} + {col})[None, :]")
            bound += 2
        elif ending == "rows":
            if not known:
                w.array(name, "i32" if kind == "i32" else "fp16", rows * k.gm)
            w.line("post", f"{acc} = {acc} * tl.load({name} + rm){view}")
            bound *= 2
        elif ending == "residual":
            width = cols * (1 if k.chain else k.gn)
            if not known:
                w.array(name, kind, rows * k.gm * width)
            w.line("post", f"{acc} += tl.load({name} + rm[:, None] * {width} + {col}[None, :])")
            bound += 2
        elif ending == "square":
            w.line("post", f"{acc} = {acc} * {acc}")
            bound *= bound
        else:
            factor = "2" if kind == "i32" else {"leaky": "0.25", "half": "0.5"}.get(ending, "0")
            text = {"relu": f"tl.maximum({acc}, 0)", "leaky": f"tl.where({acc} > 0, {acc}, {acc} * {factor})",
                    "half": f"{acc} * {factor}"}[ending]  # fmt: skip
            w.line("post", f"{acc} = {text}")
            bound *= {"leaky": 4, "half": 2}.get(ending, 1)
        if bound > _most(k, kind) and kind != "i32":
            raise Inexact
    _store(k, acc, bound, number, vector, cols, col)


def _store(k: Any, acc: str, bound: float, number: int, vector: bool, cols: int, col: str) -> None:
    f, w = k.f, k.w
    out = f"o{number}_ptr"
    kind = k.acc_kind if f["out"] == "same" or k.acc_kind in ("i32", "fp64") else f["out"]
    how = f["store"]
    rows_total, width = f["m"] * k.gm, cols * (1 if k.chain else k.gn)
    masks = []
    if k.ax["m"].ragged:
        masks.append((f"(rm < {k.ax['m'].total})", "[:, None]"))
    columns = k.ax["d" if k.chain else "n"]
    if columns.ragged:
        masks.append((f"({col} < {columns.total})", "[None, :]"))
    if vector or how in ("sum", "max", "argmax"):
        if not vector:
            if how == "sum" and bound * cols > _most(k, k.acc_kind):
                raise Inexact
            text = {
                "sum": f"tl.sum({acc}, 1)",
                "max": f"tl.max({acc}, 1)",
                "argmax": f"tl.argmax({acc}, 1)",
            }[how]
            w.line("post", f"{acc} = {text}")
            kind = "i32" if how == "argmax" else kind
        w.array(out, kind, rows_total * k.gn, fill="zeros", output=True)
        w.line("post", f"tl.store({out} + rm * {k.gn} + pn, {acc}.to({TL[kind]}))")
        return
    if how == "sum0":
        if bound * f["m"] > _most(k, k.acc_kind):
            raise Inexact
        w.array(out, kind, width * k.gm, fill="zeros", output=True)
        w.line("post", f"tl.store({out} + pm * {width} + {col}, tl.sum({acc}, 0).to({TL[kind]}))")
        return
    _store_tile(k, acc, out, kind, how, masks, rows_total, width, col)


def _store_tile(
    k: Any, acc: str, out: str, kind: str, how: str, masks: list[tuple[str, str]], rows: int, width: int, col: str
) -> None:  # fmt: skip
    f, w = k.f, k.w
    m, n = f["m"], (f["d"] if k.chain else f["n"])
    w.array(out, kind, rows * width, fill="ints" if how == "atomic" else "zeros", output=True)
    mask = ", mask=" + " & ".join(t + v for t, v in masks) if masks else ""
    value = f"{acc}.to({TL[kind]})"
    if how in ("desc", "block") and width * 2 >= 16:
        first = "0" if k.chain else f"pn * {n}"
        limits = f"[{k.ax['m'].total}, {width if k.chain else k.ax['n'].total}]"
        if how == "desc":
            made = f"tl.make_tensor_descriptor({out}, {limits}, [{width}, 1], [{m}, {n}])"
            w.line("post", f"{made}.store([pm * {m}, {first}], {value})")
        else:
            size = limits[1:-1]
            made = f"tl.make_block_ptr({out}, ({size}), ({width}, 1), (pm * {m}, {first}), ({m}, {n}), (1, 0))"
            w.line("post", f"tl.store({made}, {value}, boundary_check=(0, 1))")
    elif how == "transposed":
        turned = " & ".join(
            t + {"[:, None]": "[None, :]", "[None, :]": "[:, None]"}[v] for t, v in masks
        )
        w.line("post", f"tl.store({out} + {col}[:, None] * {rows} + rm[None, :], {value}.T"
               + (f", mask={turned})" if turned else ")"))  # fmt: skip
    elif how == "split":
        half = n // 2
        w.line("post", f"{acc}_l, {acc}_r = {acc}.reshape({m}, 2, {half}).permute(0, 2, 1).split()")
        w.line("post", f"rh = {'0' if k.chain else f'pn * {n}'} + tl.arange(0, {half})")
        for part, shift in (("l", 0), ("r", half)):
            at = f"{out} + rm[:, None] * {width} + (rh + {shift})[None, :]"
            own = mask.replace(f"({col} <", f"(rh + {shift} <")
            w.line("post", f"tl.store({at}, {acc}_{part}.to({TL[kind]}){own})")
    else:
        call = "tl.atomic_add" if how == "atomic" and kind in ("fp32", "i32") else "tl.store"
        w.line("post", f"{call}({out} + rm[:, None] * {width} + {col}[None, :], {value}{mask})")
