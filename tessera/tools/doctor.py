"""Implements the command `doctor`: what is installed, the machine, the cache, and a kernel that runs on each device."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import tessera.language as tl
from tessera.backends.cpu.cores import usable_cores
from tessera.backends.cpu.target import resolve
from tessera.backends.nvidia.ptxas import find_tool, version
from tessera.config import knobs
from tessera.errors import TesseraError
from tessera.runtime import jit
from tessera.runtime.arguments.tensors import numpy
from tessera.runtime.cache.disk import CacheWarning
from tessera.runtime.cache.trust import why_not
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.driver import driver
from tessera.utilities import PACKAGE

GOOD, MISSING, BAD = "ok", "--", "BAD"
NEEDED = ("numpy", "llvmlite")
OPTIONAL = {  # and what for
    "torch": "torch.compile, tensors on a GPU",
    "triton": "tessera takes its place in `tessera run`, and uses its ptxas",
    "jax": "kernels take its arrays",
    "ml_dtypes": "bfloat16 and 8-bit floats in NumPy",
    "rich": "colours",
    "nvidia-cuda-nvcc": "ptxas, for GPUs",
}


class Finding(NamedTuple):
    """`state` is GOOD, MISSING (optional) or BAD; `remedy` says what to do about it."""

    subject: str
    state: str
    found: str
    remedy: str = ""


@jit
def doubled(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def doctor(args: list[str]) -> int:
    """`doctor [--json]`: print what was found; 1 if something is broken."""
    parser = argparse.ArgumentParser("tessera doctor", description="look at this installation")
    parser.add_argument("--json", action="store_true", help="as JSON")
    given = parser.parse_args(args)
    findings = examine()
    broken = [x for x in findings if x.state == BAD]
    verdict = (
        "kernels run here" if not broken else f"broken: {', '.join(x.subject for x in broken)}"
    )
    if given.json:
        print(
            json.dumps({"verdict": verdict, "findings": [x._asdict() for x in findings]}, indent=2)
        )
        return int(bool(broken))
    width = max(len(x.subject) for x in findings)
    for x in findings:
        print(f"{x.state:3} {x.subject:{width}}  {x.found}{f'; {x.remedy}' if x.remedy else ''}")
    print(f"\n{verdict}")
    return int(bool(broken))


def examine() -> list[Finding]:
    """Return everything that was found, in the order in which it is shown."""
    python = f"{platform.python_version()} ({sys.executable})"
    found = [Finding("tessera", GOOD, f"{import_module('tessera').__version__} ({PACKAGE})")]
    old = sys.version_info < (3, 11)
    found.append(Finding("python", BAD if old else GOOD, python, "3.11 is needed" if old else ""))
    found += [_package(name, True) for name in NEEDED] + [
        _package(name, False) for name in OPTIONAL
    ]
    found += [_processor(), _gpu(), _assembler(), *_cache()]
    return [*found, *_self_tests()]


def _package(name: str, needed: bool) -> Finding:
    try:
        return Finding(name, GOOD, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        if needed:
            return Finding(name, BAD, "not installed", f"pip install {name}")
        return Finding(name, MISSING, f"not installed (optional: {OPTIONAL[name]})")


def _processor() -> Finding:
    target, facts = resolve()
    cores = f"{usable_cores()} of {os.cpu_count()} cores"
    return Finding("processor", GOOD, f"{target.cpu or platform.machine()}, {facts.name}, {cores}")


def _gpu() -> Finding:
    if not cuda.available():
        return Finding("GPU", MISSING, "no NVIDIA GPU or driver: kernels run on the CPU")
    try:
        api = cuda.driver()
        major, minor = api.properties(api.current_device()).capability
        release = f"{api.version() // 1000}.{api.version() % 1000 // 10}"
        return Finding(
            "GPU",
            GOOD,
            f"sm_{major}{minor}, {api.device_count()} devices, driver for CUDA {release}",
        )
    except TesseraError as error:
        return Finding("GPU", BAD, error.message, "look at nvidia-smi")


def _assembler() -> Finding:
    try:
        return Finding("ptxas", GOOD, f"{version()} ({find_tool('ptxas')})")
    except TesseraError as error:
        if cuda.available():
            return Finding("ptxas", BAD, error.message, 'pip install "tessera-lang[nvidia]"')
        return Finding("ptxas", MISSING, f"{error.message} (needed for GPUs only)")


def _cache() -> list[Finding]:
    folder = Path(knobs.cache.dir or "")
    place = next(p for p in (folder, *folder.parents) if p.exists())
    files = list(folder.glob("??/*")) if folder.exists() else []
    size = sum(path.stat().st_size for path in files if path.is_file())
    shown = f"{folder}, {len(files)} files, {size / 1e6:.1f} MB"
    if not place.is_dir() or not os.access(place, os.W_OK):
        remedy = "kernels are compiled in each process: set TESSERA_CACHE_DIR to a folder of yours"
        return [Finding("cache", BAD, f"{shown}: not writable", remedy)]
    refused = why_not(folder) if folder.exists() else None
    if refused:
        return [
            Finding("cache", BAD, f"{shown}: {refused}", "chmod go-w it, or set TESSERA_CACHE_DIR")
        ]
    return [Finding("cache", GOOD, shown)]


# --- a kernel on each device ------------------------------------------------------------------------------------
def _self_tests() -> list[Finding]:
    found = [
        _try("interpreter", lambda: _on_host("interpreter")),
        _try("cpu", lambda: _on_host("cpu")),
    ]
    if cuda.available():
        found.append(_try("cuda", _on_gpu))
    return found


def _try(device: str, test: Callable[[], bool]) -> Finding:
    subject = f"a kernel on {device}"
    try:
        right = test()
    except Exception as error:  # whatever is broken here is what the command is for
        return Finding(subject, BAD, f"{type(error).__name__}: {error}", "tell us with this output")
    return Finding(subject, GOOD if right else BAD, "runs" if right else "gives wrong results")


def _on_host(name: str) -> bool:
    np = numpy()
    x, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    driver.set_active(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)  # the finding on the cache says it
            doubled[(4,)](x, out, 100, BLOCK=32)
    finally:
        driver.reset_active()
    return bool((out == x * 2).all())


def _on_gpu() -> bool:
    np, api = numpy(), cuda.driver()
    x, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    api.bind()
    memory = [api.allocate(x.nbytes) for _ in range(2)]
    try:
        api.copy_to_device(memory[0], x.ctypes.data, x.nbytes)
        arrays = [_OnGpu(address) for address in memory]
        doubled[(4,)](*arrays, 100, BLOCK=32)  # pyright: ignore[reportCallIssue]
        api.synchronize()
        api.copy_to_host(out.ctypes.data, memory[1], out.nbytes)
    finally:
        for address in memory:
            api.free(address)
    return bool((out == x * 2).all())


class _OnGpu:
    """100 floats of a GPU's memory, as a kernel's argument."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (100,), "typestr": "<f4", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip
