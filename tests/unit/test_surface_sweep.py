"""Whatever a kernel calls with whatever arguments: it compiles and computes what the interpreter does, or is refused.

A sample of all calls in each run. TESSERA_SWEEP_SCALE=40 takes forty times as many (`make sweep`), TESSERA_SWEEP_SEED=n
others.
"""

# pyright: basic
from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import random
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tessera
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, make_backend
from tessera.errors import CompilationError, InternalError, OutOfBounds
from tessera.runtime.driver import driver
from tests.conftest import Device
from tests.unit.surface_calls import FORMS, HEAD, LIBRARY, calls

SEED = int(os.environ.get("TESSERA_SWEEP_SEED", "0"))
SCALE = int(os.environ.get("TESSERA_SWEEP_SCALE", "1"))
PARTS = 8
pytestmark = pytest.mark.filterwarnings("ignore")


@cache
def all_calls() -> list[str]:
    return list(dict.fromkeys(calls([*FORMS, *LIBRARY], everything=False)))


def arrays_in(call: str) -> list[str]:
    return sorted(set(re.findall(r"\bp_\w+", call)))


def module_of(path: Path, wanted: list[str]) -> ModuleType:
    """Kernels k0, k1, ... that make these calls and keep what they give."""
    text = [HEAD]
    for i, call in enumerate(wanted):
        names = ", ".join([*arrays_in(call), "ints", "floats"])
        text.append(
            f"\n@tessera.jit\ndef k{i}({names}):\n    r = {call}\n    keep(ints, floats, r)\n"
        )
    path.write_text("".join(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source_of(kernel: Any, call: str) -> ASTSource:
    kinds = {name: f"*{name[2:]}" for name in arrays_in(call)}
    return ASTSource(kernel, {**kinds, "ints": "*i64", "floats": "*fp64"})


def compiled(kernel: Any, call: str, target: GPUTarget, last: str) -> bool:
    """Compile up to stage `last`; whether the kernel was accepted."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            made = tessera.compile(source_of(kernel, call), target=target)
    except InternalError:
        raise
    except CompilationError:
        return False
    return bool(made.asm[last])


@pytest.mark.parametrize("part", range(PARTS))
def test_no_call_breaks_the_front_end(tmp_path: Path, part: int):
    """Accepted, or refused with an error of the kernel's author."""
    wanted = random.Random(SEED * PARTS + part).sample(all_calls(), 250 * SCALE)
    check_front_end(tmp_path, wanted)


def check_front_end(folder: Path, wanted: list[str]) -> None:
    module = module_of(folder / "sweep.py", wanted)
    target = GPUTarget("cuda", 90, 32)
    options = make_backend(target).parse_options({})
    accepted = 0
    for i, call in enumerate(wanted):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                source_of(getattr(module, f"k{i}"), call).make_ir(options)
            accepted += 1
        except InternalError as error:
            raise AssertionError(f"{call}: {error}") from error
        except CompilationError:
            continue
        except Exception as error:
            raise AssertionError(f"{call}: {type(error).__name__}: {error}") from error
    assert accepted > len(wanted) // 20


# --- what they compute -----------------------------------------------------------------------------------------
INTEGERS = [0, 1, -1, 2, -2, 3, 7, -7, 31, 32, 33, 63, 64, 100, 127, -128]
REALS = [
    0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 100.0, -7.0, np.inf, -np.inf, np.nan, 1.5, 2.0, -0.25
]  # fmt: skip
SIZE = 1 << 16


def values(kind: str) -> np.ndarray:
    """256 numbers of a type, in an order of its own; of integers its ends, too."""
    order = np.random.default_rng(sum(map(ord, kind))).permutation(256)
    if kind == "i1":
        return order % 2 == 0
    if kind[0] in "iu":
        info = np.iinfo({"i": "int", "u": "uint"}[kind[0]] + kind[1:])
        found = [n for n in INTEGERS if info.min <= n <= info.max]
        found += [info.min, info.max, info.max - 1, info.min + 1]
        return np.array([found[i % len(found)] for i in order], info.dtype)
    return np.array(REALS)[order % len(REALS)]


def results(name: str, kernel: Any, call: str) -> dict[str, np.ndarray]:
    """All arrays after a launch."""
    driver.set_active(name)
    try:
        device = Device(name)
        args = {p: device.array(values(p[2:]), p[2:]) for p in arrays_in(call)}
        args |= {"ints": device.zeros(SIZE, "i64"), "floats": device.zeros(SIZE, "fp64")}
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            kernel[(1,)](*args.values())
        return {p: device.numpy(x).copy() for p, x in args.items()}
    finally:
        driver.reset_active()


# The order of a sum is nobody's promise; with infinities and cancellation it decides. Where threads of a program
# change one element, so does their order; global time and addresses are of a run.
UNORDERED = re.compile(r"cumsum|cumprod|sum\(|atomic_|softmax|scan|reduce|dot|make_\w+ptr|bitcast")


def agree(call: str, a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    for name, want in a.items():
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(b[name], want, f"{name} of {call}")
        else:
            np.testing.assert_allclose(b[name], want, 1e-4, 1e-5, err_msg=f"{name} of {call}")


def accepted_calls(folder: Path, seed: int, count: int) -> list[tuple[str, Any]]:
    """Calls that compile, with their kernels; without those whose results may differ."""
    drawn = [c for c in all_calls() if not UNORDERED.search(c) and "print" not in c]
    drawn = random.Random(seed).sample(drawn, min(len(drawn), 12 * count))
    module = module_of(folder / "agree.py", drawn)
    target = GPUTarget("cuda", 90, 32)
    options = make_backend(target).parse_options({})
    found: list[tuple[str, Any]] = []
    for i, call in enumerate(drawn):
        kernel = getattr(module, f"k{i}")
        with contextlib.suppress(CompilationError):
            source_of(kernel, call).make_ir(options)
            found.append((call, kernel))
        if len(found) == count:
            break
    return found


def check_results(folder: Path, seed: int, count: int) -> None:
    for call, kernel in accepted_calls(folder, seed, count):
        try:
            want = results("interpreter", kernel, call)
        except (CompilationError, OutOfBounds):  # for GPUs only, or offsets that lead anywhere
            continue
        agree(call, want, results("cpu", kernel, call))


def test_accepted_calls_agree(tmp_path: Path):
    check_results(tmp_path, SEED, 100 * SCALE)


def check_ptx(folder: Path, seed: int, count: int) -> None:
    for call, kernel in accepted_calls(folder, seed, count):
        assert compiled(kernel, call, GPUTarget("cuda", 90, 32), "ptx"), call


def test_accepted_calls_compile_for_a_gpu(tmp_path: Path):
    check_ptx(tmp_path, SEED + 1000, 60 * SCALE)
