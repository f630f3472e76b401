"""Computes arithmetic on 8-bit floats in fp32, since GPUs only store such floats and multiply matrices of them.

%c = add %a, %b : fp8e5      →      %x = cast %a : fp32
                                    %y = cast %b : fp32
                                    %z = add %x, %y : fp32
                                    %c = cast %z : fp8e5
"""

from __future__ import annotations

from tessera.dtypes import dtype, float32
from tessera.ir import Builder, Module, Op, Value, elem_of, pass_, with_elem
from tessera.ops import arith

MOVES = (arith.CastOp, arith.BitcastOp, arith.SelectOp, arith.HintOp)  # these only copy bits


def _is_float8(v: Value) -> bool:
    elem = elem_of(v.type)
    return isinstance(elem, dtype) and elem.is_fp8()


def _widen(op: Op) -> None:
    builder = Builder.before_op(op)
    wide = {
        v: builder.emit(arith.CastOp(v, results=[with_elem(v.type, float32)]))
        for v in op.operands
        if _is_float8(v)
    }
    new = builder.insert(op.clone(dict(wide)))
    results = list(new.results)
    for i, v in enumerate(new.results):
        if _is_float8(v):
            narrow, v.type = v.type, with_elem(v.type, float32)
            results[i] = builder.emit(arith.CastOp(v, results=[narrow]))
    op.replace_by(results)


@pass_("widen-float8")
def widen_float8(module: Module) -> None:
    """Compute in fp32 what is computed of 8-bit floats, and round each result to its type, as the language says.

    Takes: tile IR without layouts.
    Gives: arithmetic on fp32 between casts; dots and moves of 8-bit floats stay.
    Needs: any GPU.
    Raises: nothing.
    Example: `arithmetic` of tests/filecheck/widen-float8.tir
        add %a, %b → cast %a; cast %b; add; cast
    Compare: promotion of small floats in LLVM's type legalisation.
    """
    for op in list(module.walk()):
        if isinstance(op, arith.Elementwise) and not isinstance(op, MOVES):
            if any(_is_float8(v) for v in op.operands):
                _widen(op)
