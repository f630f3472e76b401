"""What a kernel is compiled for: asked by the kernel, by functions that run at compile time, and by the host."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.runtime.driver import driver

TARGETS = [GPUTarget("cuda", 90, 32), GPUTarget("cuda", 80, 32), GPUTarget("cpu", "generic", 1)]


@tessera.constexpr_function
def width(factor):
    target = tl.target_info.current_target()
    wide = target.backend == "cuda" and tl.target_info.cuda_capability_geq(9)
    return factor * (4 if wide else 2 if tl.target_info.is_cuda() else 1)


@tessera.jit
def fill_kernel(out):
    tl.store(out + tl.arange(0, 4), width(100) + 7)


@pytest.mark.parametrize(("target", "number"), list(zip(TARGETS, (407, 207, 107), strict=True)))
def test_a_compile_time_function_asks_for_the_target_of_its_kernel(target, number):
    source = ASTSource(fill_kernel, {"out": "*i32"}, {})
    assert f"{{value={number}}}" in tessera.compile(source, target=target).asm["tir"]


@pytest.mark.parametrize("name", ["cpu", "interpreter"])
def test_the_host_asks_for_the_target_of_launches(name):
    driver.set_active(name)
    try:
        assert tl.target_info.current_target() == driver.active.get_current_target()
        assert not tl.target_info.is_cuda()
        assert not tl.target_info.is_hip()
        assert not tl.target_info.is_hip_cdna3()
        assert not tl.target_info.cuda_capability_geq(8, 0)
        assert width(3) == 3
        out = np.zeros(4, np.int32)
        fill_kernel[(1,)](out)
        assert (out == 107).all()
    finally:
        driver.reset_active()


def test_other_operations_of_kernels_say_so_on_the_host():
    with pytest.raises(tessera.TesseraError, match="inside a kernel"):
        tl.arange(0, 4)


def test_what_a_kernel_captures_is_listed():
    size = 16

    @tessera.jit
    def kernel(out):
        tl.store(out, size)

    scope = kernel.get_capture_scope()
    assert scope["size"] == 16
    assert scope["fill_kernel"] is fill_kernel
