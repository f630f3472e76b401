"""`triton._internal_testing`: data goes to a kernel and comes back; knobs and processes are restored."""

from __future__ import annotations

import os
import subprocess
import sys

from kit import ROOT

PROGRAM = """
import os
import numpy as np
import pytest
import triton
import triton.language as tl
import triton._internal_testing as kit


@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n), at < n)


def fail(text):
    raise ValueError(text)


def leave():
    os._exit(3)


def main():
    for name in [*kit.dtypes_with_bfloat16, "bool"]:
        data = kit.numpy_random((5, 10), name, rs=np.random.RandomState(1))
        x = kit.to_triton(data, device="cpu", dst_type=name)
        y = kit.to_triton(np.zeros_like(data), device="cpu", dst_type=name)
        copy[(1,)](x, y, data.size, BLOCK=64)
        back = kit.to_numpy(y)
        assert back.dtype == data.dtype and np.array_equal(back, data), name
        if name != "bool":
            assert (data != 0).all() and len(np.unique(data)) > 20
    assert kit.numpy_random(50, "int8", low=3, high=5).max() == 4
    with pytest.raises(RuntimeError, match="no random data"):
        kit.numpy_random(5, "complex64")

    assert kit.str_to_triton_dtype("float32") is tl.float32 and kit.str_to_triton_dtype("fp8e5") is tl.float8e5
    assert kit.torch_dtype_name(tl.bfloat16) == "bfloat16" and kit.torch_dtype_name(tl.int1) in ("int1", "bool")
    assert not kit.is_cuda() and not kit.is_hopper() and not kit.is_hip() and kit.supports_tma()

    os.environ["TRITON_DEBUG"] = "1"
    triton.knobs.runtime.debug = True
    fresh, restore = kit._fresh_knobs_impl()
    fresh()
    assert not triton.knobs.runtime.debug and "TRITON_DEBUG" not in os.environ
    triton.knobs.language.fp32_default = "ieee"
    restore()
    assert triton.knobs.runtime.debug and os.environ["TRITON_DEBUG"] == "1"
    assert triton.knobs.language.fp32_default != "ieee"

    assert kit.run_in_process(len, ((1, 2),)).exc is None
    result = kit.run_in_process(fail, ("lost",))
    assert isinstance(result.exc, ValueError) and "lost" in result.driver_stderr_output
    assert "exit code 3" in str(kit.run_in_process(leave).exc)
    print("fine")


if __name__ == "__main__":
    main()
"""


def test_data_knobs_and_processes(tmp_path) -> None:
    script = tmp_path / "use_kit.py"
    script.write_text(PROGRAM)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "TESSERA_"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tessera/compat/path"), str(ROOT)])
    environment["TESSERA_DEVICE"] = "cpu"  # also where there is a GPU
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "fine"
