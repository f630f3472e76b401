"""LLVM binding: IR text to PTX, objects and running code; errors with the line; lazy import."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from typing import Any

import pytest

from tessera.backends.llvm import binding
from tessera.backends.llvm.binding import LLVMError, host, link_object, nvptx, optimise
from tessera.config import knobs

ADD = """
define i64 @f(i64 %x) {
  %p = alloca i64
  store i64 %x, ptr %p
  %v = load i64, ptr %p
  %y = add i64 %v, 1
  ret i64 %y
}
"""


def call(image: bytes, name: str, *types: Any):
    loaded = link_object(image, [name])
    function: Any = ctypes.CFUNCTYPE(*types)(loaded[name])
    function.keep = loaded
    return function


def test_native_code_runs():
    module = optimise(ADD, host())
    assert "alloca" not in module.text()
    f = call(module.to_object(), "f", ctypes.c_int64, ctypes.c_int64)
    assert f(41) == 42
    assert set(module.timings) == {"parse", "opt", "emit"}
    assert all(t > 0 for t in module.timings.values())


def test_no_passes_leaves_the_text_alone():
    module = optimise(ADD, host(), passes=None)
    assert "alloca" in module.text()
    assert "opt" not in module.timings


@pytest.mark.parametrize("level", ["O1", "O3"])
def test_levels_promote_memory_but_do_not_unroll(level: str):
    loop = """
define void @f(ptr %p) {
entry:
  br label %body
body:
  %i = phi i64 [0, %entry], [%n, %body]
  %q = getelementptr float, ptr %p, i64 %i
  store float 1.0, ptr %q
  %n = add i64 %i, 1
  %c = icmp ult i64 %n, 64
  br i1 %c, label %body, label %done
done:
  ret void
}
"""
    text = optimise(loop, host(), level).text()
    assert text.count("store float") == 1
    assert " x float>" not in text


def test_libm_and_imports_resolve():
    text = """
declare double @cbrt(double)
declare i64 @mine(i64)
define double @f(double %x) {
  %r = call double @cbrt(double %x)
  %i = call i64 @mine(i64 5)
  %d = sitofp i64 %i to double
  %s = fadd double %r, %d
  ret double %s
}
"""
    mine = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: x * 2)
    address = ctypes.cast(mine, ctypes.c_void_p).value
    assert address
    loaded = link_object(optimise(text, host()).to_object(), ["f"], {"mine": address})
    f = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(loaded["f"])
    assert math.isclose(f(27.0), 13.0)


def test_near_constants_are_linked():
    text = """
@t = private constant [2 x double] [double 2.5, double 4.5]
define double @f(i64 %i) {
  %p = getelementptr double, ptr @t, i64 %i
  %v = load double, ptr %p
  %r = fmul double %v, 0x3FF8000000000000
  ret double %r
}
"""
    f = call(optimise(text, host()).to_object(), "f", ctypes.c_double, ctypes.c_int64)
    assert [f(0), f(1)] == [3.75, 6.75]


def test_many_objects_with_the_same_symbol():
    functions = []
    for k in range(20):
        image = optimise(f"define i64 @f() {{ ret i64 {k} }}", host()).to_object()
        functions.append(call(image, "f", ctypes.c_int64))
    assert [f() for f in functions] == list(range(20))


def test_ptx():
    text = """
target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @k(ptr addrspace(1) %p) {
  store float 1.0, ptr addrspace(1) %p
  ret void
}
"""
    ptx = optimise(text, nvptx("sm_90a", 86)).to_assembly()
    assert ".target sm_90a" in ptx
    assert ".version 8.6" in ptx
    assert ".entry k" in ptx
    assert "st.global.b32" in ptx
    assert ".target sm_80" in optimise(text, nvptx("sm_80", 80)).to_assembly()


def test_cross_targets_emit_assembly():
    text = (
        "define <8 x float> @f(<8 x float> %a) { %r = fadd <8 x float> %a, %a  ret <8 x float> %r }"
    )
    assert "ymm" in optimise(text, binding.x86("x86-64-v3")).to_assembly()
    assert "fadd" in optimise(text, binding.aarch64()).to_assembly()


def test_isa_names():
    assert host("avx2").cpu in ("x86-64-v3", "generic")
    assert host(knobs.cpu.isa).cpu == host().cpu
    assert host("avx2").key != host("native").key


def test_parse_error_shows_the_line():
    with pytest.raises(LLVMError) as caught:
        optimise(
            "define void @f() {\n  %x = add i32 1, 2\n  %y = mulx i32 %x, 1\n  ret void\n}\n",
            host(),
        )
    assert caught.value.line == 3
    text = str(caught.value)
    assert "LLVM IR line 3, column 8: expected instruction opcode" in text
    assert ">     3 |   %y = mulx i32 %x, 1" in text
    assert isinstance(caught.value, RuntimeError)


def test_verifier_error():
    bad = """
define i64 @f(i1 %c) {
entry:
  br i1 %c, label %a, label %b
a:
  %x = add i64 1, 2
  br label %b
b:
  ret i64 %x
}
"""
    with pytest.raises(LLVMError, match="does not dominate all uses"):
        optimise(bad, host(), verify=True)


def test_unknown_pass_missing_symbol_and_target():
    with pytest.raises(LLVMError, match="unknown LLVM pass 'magic'"):
        optimise(ADD, host(), "sroa,magic")
    image = optimise(
        "declare i64 @tessera_nowhere()\ndefine i64 @f() { %r = call i64 @tessera_nowhere() ret i64 %r }",
        host(),
    ).to_object()
    with pytest.raises(LLVMError, match="cannot load the object"):
        link_object(image, ["f"])
    with pytest.raises(LLVMError, match="no LLVM target machine"):
        optimise(ADD, binding.Target("nonsense-machine", "x")).to_object()


def test_llvmlite_is_imported_late():
    code = "import sys, tessera.backends.llvm.binding; sys.exit('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pinned_code_survives_the_interpreter():
    code = f"""
from tessera.backends.llvm.binding import *
link_object(optimise({ADD!r}, host()).to_object(), ["f"]).pin()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
