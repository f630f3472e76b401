"""Finds NVIDIA's command line tools, assembles PTX with ptxas, disassembles cubins.

ptxas is taken from the knob nvidia.ptxas (TESSERA_PTXAS), else from the `nvidia-cuda-nvcc` wheel, else from CUDA_HOME
or CUDA_PATH, else from PATH. `version()` is part of the cache key, since another assembler makes another kernel.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from tessera.backends.nvidia.tool_process import run_tool
from tessera.config import knobs
from tessera.config.budget import out_of_time, remaining_seconds
from tessera.errors import CompilationTimeout, PTXASError, TesseraError, ToolNotFound

# Where wheels install the tools: CUDA 12 wheels use one folder per package, CUDA 13 wheels one for all.
WHEEL_FOLDERS = (
    "nvidia/cu13/bin",
    "nvidia/cuda_nvcc/bin",
    "nvidia/cuda_cuobjdump/bin",
    "nvidia/cuda_nvdisasm/bin",
    "triton/backends/nvidia/bin",
)
E = TypeVar("E", bound=TesseraError)
PTXAS_TOO_SLOW = (
    "set TESSERA_PTXAS_BUDGET to more seconds (0: only the compilation's budget counts), or give ptxas less to do: "
    "smaller tiles, fewer stages, more warps, no `static_range` over large loops"
)
BLACKWELL = 100  # the first compute capability, times ten, of that family
REMEDIES = {
    "ptxas": "`pip install nvidia-cuda-nvcc`, or set TESSERA_PTXAS=/path/to/ptxas, or set CUDA_HOME to a CUDA toolkit",
    "nvdisasm": "`pip install nvidia-cuda-nvdisasm`, or set TESSERA_NVDISASM or CUDA_HOME",
    "cuobjdump": "`pip install nvidia-cuda-cuobjdump`, or set TESSERA_CUOBJDUMP or CUDA_HOME",
}


@dataclass(frozen=True)
class Assembled:
    """A cubin and what ptxas reported. With several entry functions, the largest figure counts; sizes are in bytes."""

    cubin: bytes
    log: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    smem: int
    barriers: int
    warnings: tuple[str, ...]


# --- finding ----------------------------------------------------------------------------------------------
def find_tool(name: str) -> str:
    """Return the path of ptxas, nvdisasm or cuobjdump. Raises ToolNotFound, which says where it was searched for."""
    configured = getattr(knobs.nvidia, name)
    if configured:
        if os.access(configured, os.X_OK) and os.path.isfile(configured):
            return configured
        raise ToolNotFound(
            f"TESSERA_{name.upper()} names {configured!r}, which is no executable file",
            help=f"correct or unset TESSERA_{name.upper()} (or TRITON_{name.upper()}_PATH)",
        )
    found = _search(name, *_places())
    if found is None:
        raise ToolNotFound(
            f"{name} was not found: not in the nvidia wheels of this Python, CUDA_HOME, CUDA_PATH or PATH",
            help=REMEDIES[name],
        )
    return found


def ptxas_for(arch: str) -> str:
    """Return the path of the ptxas that assembles for `arch` (sm_90a, …). The knob nvidia.ptxas_blackwell gives that
    of sm_100 and newer, if set."""
    number = int("".join(filter(str.isdigit, arch)) or 0)
    blackwell = number >= BLACKWELL and knobs.nvidia.ptxas_blackwell
    return find_tool("ptxas_blackwell" if blackwell else "ptxas")


def _places() -> tuple[str, str, str]:
    """Return what the search depends on besides the file system."""
    return (
        os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), os.environ.get("PATH", ""),
    )  # fmt: skip


@lru_cache(maxsize=32)
def _search(name: str, cuda_home: str, cuda_path: str, path: str) -> str | None:
    for site in sys.path:
        if not os.path.isdir(os.path.join(site, "nvidia")) and not os.path.isdir(
            os.path.join(site, "triton")
        ):
            continue
        found = _in_wheels(Path(site), name)
        if found is not None:
            return found
    for root in (cuda_home, cuda_path):
        candidate = os.path.join(root, "bin", name)
        if root and os.access(candidate, os.X_OK):
            return candidate
    return shutil.which(name, path=path) or shutil.which(name, path="/usr/local/cuda/bin")


def _in_wheels(site: Path, name: str) -> str | None:
    known = [site / folder / name for folder in WHEEL_FOLDERS]
    for candidate in [*known, *sorted(site.glob(f"nvidia/*/bin/{name}"), reverse=True)]:
        if candidate.is_file():
            return str(_executable(candidate))
    return None


def _executable(path: Path) -> Path:
    """Make a tool executable: some installers lose the x bit of wheels' files."""
    if not os.access(path, os.X_OK):
        try:
            path.chmod(path.stat().st_mode | 0o111)
        except OSError:
            raise ToolNotFound(f"{path} is not executable", help=f"run: chmod +x {path}") from None
    return path


def version(path: str | None = None) -> str:
    """Return the release of ptxas at `path` (default: the one found), like 13.0.88. The knob nvidia.mock_ptx_version
    overrides it."""
    mocked = knobs.nvidia.mock_ptx_version
    if mocked:
        said = re.search(r"\d+(?:\.\d+)+", mocked)
        if said is None:
            raise ValueError(f"knob nvidia.mock_ptx_version names no release: {mocked!r}")
        return said[0]
    path = path or find_tool("ptxas")
    stat = os.stat(path)
    return _version(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _version(path: str, mtime: int, size: int) -> str:
    result = run_tool([path, "--version"])
    found = re.search(r"\bV(\d+(?:\.\d+)+)", result.stdout)
    if result.status or found is None:
        raise ToolNotFound(f"{path} --version failed: {(result.stderr or result.stdout).strip()}")
    return found[1]


def newest_ptx(release: str) -> int:
    """Return the newest PTX ISA (major * 10 + minor) that the assembler of a CUDA release reads: 12.0 reads 8.0, 12.8
    reads 8.7, 13.0 reads 9.0."""
    major, minor = (int(x) for x in release.split(".")[:2])
    if major >= 13:
        return 90 + 10 * (major - 13) + minor
    if major == 12:
        # 12.5 and 12.6 both read 8.5.
        return 80 + (minor if minor < 6 else minor - 1)
    return 70 + minor


# --- running ----------------------------------------------------------------------------------------------
def assemble(
    ptx: str, arch: str, options: Sequence[str] = (), line_info: bool = False
) -> Assembled:
    """Assemble `ptx` for `arch` (sm_80, sm_90a, …). `options` go to ptxas before those of the knob ptxas_options.

    Raises PTXASError with ptxas's message, the PTX lines meant and a command to repeat it; ToolNotFound.
    """
    tool = ptxas_for(arch)
    command = [tool, "-v", f"-arch={arch}", *extra_options(options, line_info)]
    with tempfile.TemporaryDirectory(prefix="tessera-ptxas-") as folder:
        source, target = os.path.join(folder, "kernel.ptx"), os.path.join(folder, "kernel.cubin")
        Path(source).write_text(ptx, encoding="utf-8")
        own, left = knobs.nvidia.ptxas_budget or None, remaining_seconds()
        try:
            result = run_tool(
                [*command, source, "-o", target], min((s for s in (own, left) if s), default=None)
            )
        except subprocess.TimeoutExpired:
            if own is None or (left is not None and left <= own):
                raise out_of_time("ptxas") from None
            raise _too_slow(own, command, ptx) from None
        log = result.stdout + result.stderr
        if result.status != 0 or not os.path.exists(target):
            raise _failure(command, ptx, log.replace(source, "kernel.ptx"), result.status)
        cubin = Path(target).read_bytes()
    if knobs.nvidia.dump_ptxas_log:
        print(log, file=sys.stderr)
    return read_log(cubin, log)


def extra_options(options: Sequence[str], line_info: bool = False) -> list[str]:
    """Return `options` and those that knobs add."""
    extra = shlex.split(knobs.nvidia.ptxas_options or "")
    level = ["-O0"] if knobs.nvidia.disable_ptxas_opt else []
    return [*options, *(["-lineinfo"] if line_info else []), *level, *extra]


def _largest(pattern: str, log: str) -> int:
    return max((int(n) for n in re.findall(pattern, log)), default=0)


def read_log(cubin: bytes, log: str) -> Assembled:
    return Assembled(
        cubin=cubin,
        log=log,
        registers=_largest(r"Used (\d+) registers", log),
        spill_stores=_largest(r"(\d+) bytes spill stores", log),
        spill_loads=_largest(r"(\d+) bytes spill loads", log),
        stack=_largest(r"(\d+) bytes stack frame", log),
        smem=_largest(r"(\d+) bytes smem", log),
        barriers=_largest(r"used (\d+) barriers", log),
        warnings=tuple(line.strip() for line in log.splitlines() if is_warning(line)),
    )


def is_warning(line: str) -> bool:
    """Warnings, and the advice that ptxas prints as `info` although it costs much speed (wgmma serialisation,
    ignored setmaxnreg)."""
    return (
        "warning" in line.lower()
        or "C75" in line
        or "Potential Performance Loss" in line
        or "setmaxnreg" in line
    )


def _failure(command: list[str], ptx: str, log: str, code: int) -> PTXASError:
    what = f"was killed by signal {-code}" if code < 0 else f"failed with code {code}"
    error = PTXASError("\n".join([f"ptxas {what}", log.strip(), *lines_meant(ptx, log)]))
    return _repeatable(error, command, ptx)


def _too_slow(seconds: float, command: list[str], ptx: str) -> CompilationTimeout:
    error = CompilationTimeout("ptxas", seconds, help=PTXAS_TOO_SLOW)
    return _repeatable(error, command, ptx)


def _repeatable(error: E, command: list[str], ptx: str) -> E:
    """The error with a file that holds the PTX and the command that repeats it."""
    try:
        handle, saved = tempfile.mkstemp(prefix="tessera-", suffix=".ptx")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(ptx)
    except OSError as full:  # what went wrong is worth more than its repetition
        return error.note(f"the PTX could not be kept: {full.strerror or full}")
    output = os.path.splitext(saved)[0] + ".cubin"
    repeat = shlex.join([*command, saved, "-o", output])
    error.note(f"the PTX is in {saved}")
    error.note(f"repeat with: {repeat}")
    return error


def lines_meant(ptx: str, log: str, most: int = 5) -> list[str]:
    """The PTX lines that the log's `line N` messages speak of."""
    lines = ptx.splitlines()
    numbers = dict.fromkeys(int(n) for n in re.findall(r"\bline (\d+)", log))
    return [f"  {n:5} | {lines[n - 1][:160]}" for n in list(numbers)[:most] if 0 < n <= len(lines)]


def disassemble(cubin: bytes, options: Sequence[str] = ()) -> str:
    """SASS of `cubin`, by nvdisasm, else by cuobjdump. ToolNotFound if neither is there."""
    try:
        tool, arguments = find_tool("nvdisasm"), ["-c", *options]
    except ToolNotFound:
        try:
            tool, arguments = find_tool("cuobjdump"), ["-sass", *options]
        except ToolNotFound:
            raise ToolNotFound(
                "neither nvdisasm nor cuobjdump was found", help=REMEDIES["nvdisasm"]
            ) from None
    with tempfile.TemporaryDirectory(prefix="tessera-sass-") as folder:
        path = os.path.join(folder, "kernel.cubin")
        Path(path).write_bytes(cubin)
        result = run_tool([tool, *arguments, path])
    if result.status != 0:
        raise PTXASError(
            f"{os.path.basename(tool)} failed with code {result.status}: {result.stderr.strip()}"
        )
    return result.stdout
