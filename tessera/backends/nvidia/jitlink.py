"""Assembles PTX in this process by the library nvJitLink, from the `nvidia-nvjitlink` wheel or from CUDA_HOME.

torch's CUDA wheels include it. `assembler` says how it differs from ptxas.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

from tessera.backends.nvidia.ptxas import Assembled, extra_options, lines_meant, read_log
from tessera.config import knobs
from tessera.errors import PTXASError, ToolNotFound

PATTERNS = ("nvidia/cu*/lib/libnvJitLink.so.*", "nvidia/nvjitlink/lib/libnvJitLink.so.*")
OLDEST = (12, 4)  # reads PTX 8.4; older ones are ignored
BLACKWELL = (12, 8)  # the first release that knows targets after sm_90
PTX_INPUT = 2  # NVJITLINK_INPUT_PTX
# A handle is a pointer; results are ints.
SIGNATURES: dict[str, list[Any]] = {
    "nvJitLinkCreate": [c_void_p, c_uint, c_void_p],
    "nvJitLinkDestroy": [c_void_p],
    "nvJitLinkAddData": [c_void_p, c_int, c_char_p, c_size_t, c_char_p],
    "nvJitLinkComplete": [c_void_p],
    "nvJitLinkGetLinkedCubinSize": [c_void_p, c_void_p],
    "nvJitLinkGetLinkedCubin": [c_void_p, c_void_p],
    "nvJitLinkGetErrorLogSize": [c_void_p, c_void_p],
    "nvJitLinkGetErrorLog": [c_void_p, c_void_p],
    "nvJitLinkGetInfoLogSize": [c_void_p, c_void_p],
    "nvJitLinkGetInfoLog": [c_void_p, c_void_p],
    "nvJitLinkVersion": [c_void_p, c_void_p],
}


def available() -> bool:
    """Whether a library that is new enough is installed."""
    return _library(*_places()) is not None


def version() -> str:
    """Return the library's release, like 13.0. Raises ToolNotFound if it is not installed."""
    return ".".join(map(str, _loaded()[1]))


def _places() -> tuple[str, str, str]:
    return (
        knobs.nvidia.jitlink_path or "", os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")
    )  # fmt: skip


@lru_cache(maxsize=8)
def _library(configured: str, cuda_home: str, cuda_path: str) -> tuple[Any, tuple[int, int]] | None:
    """Return the newest library found, with its version."""
    if configured:
        paths = [Path(configured)]
    else:
        paths = [p for site in sys.path for pattern in PATTERNS for p in Path(site).glob(pattern)]
        paths += [Path(r) / "lib64" / "libnvJitLink.so" for r in (cuda_home, cuda_path) if r]
    found = [opened for p in paths if (opened := _open(p)) is not None]
    return max(found, key=lambda row: row[1], default=None)


def _open(path: Path) -> tuple[Any, tuple[int, int]] | None:
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    for name, types in SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            return None
        function.argtypes, function.restype = types, c_int
    major, minor = c_uint(), c_uint()
    if library.nvJitLinkVersion(byref(major), byref(minor)) != 0:
        return None
    release = (major.value, minor.value)
    return (library, release) if release >= OLDEST else None


def _loaded() -> tuple[Any, tuple[int, int]]:
    found = _library(*_places())
    if found is None:
        raise ToolNotFound(
            "nvJitLink was not found, or none of CUDA 12.4 or newer",
            help="`pip install nvidia-nvjitlink`, or set TESSERA_JITLINK_PATH or CUDA_HOME",
        )
    return found


def assemble(
    ptx: str, arch: str, options: Sequence[str] = (), line_info: bool = False
) -> Assembled:
    """Assemble `ptx` for `arch`; `options` are ptxas's. Raises PTXASError with the library's message and PTX lines."""
    library, release = _loaded()
    if not 75 <= int(re.sub(r"\D", "", arch)) <= (90 if release < BLACKWELL else 121):
        # The library would end the process.
        raise ToolNotFound(f"nvJitLink {version()} does not know {arch}")
    given = [f"-Xptxas={o}" for o in extra_options(options)]
    if line_info:
        given.append("-lineinfo")
    flags = [o.encode() for o in (f"-arch={arch}", "-O3", "-verbose", *given)]
    handle = c_void_p()
    result = library.nvJitLinkCreate(byref(handle), len(flags), (c_char_p * len(flags))(*flags))
    if result != 0:
        raise PTXASError(
            f"nvJitLink refused the options {b' '.join(flags).decode()} (result {result})"
        )
    try:
        data = ptx.encode()
        result = library.nvJitLinkAddData(handle, PTX_INPUT, data, len(data), b"kernel.ptx")
        result = result or library.nvJitLinkComplete(handle)
        log = _text(library, handle, "Info") + _text(library, handle, "Error")
        if knobs.nvidia.dump_ptxas_log:
            print(log, file=sys.stderr)
        if result != 0:
            said = [f"nvJitLink failed with result {result}", log.strip(), *lines_meant(ptx, log)]
            raise PTXASError("\n".join(said))
        size = c_size_t()
        library.nvJitLinkGetLinkedCubinSize(handle, byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        library.nvJitLinkGetLinkedCubin(handle, cubin)
    finally:
        library.nvJitLinkDestroy(byref(handle))
    return read_log(cubin.raw, log)


def _text(library: object, handle: object, which: str) -> str:
    size = c_size_t()
    getattr(library, f"nvJitLinkGet{which}LogSize")(handle, byref(size))
    text = ctypes.create_string_buffer(size.value + 1)
    getattr(library, f"nvJitLinkGet{which}Log")(handle, text)
    return text.value.decode(errors="replace")
