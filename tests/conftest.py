"""Devices for the tests: one language test runs on the interpreter, on the CPU and, with `--device cuda`, on a GPU."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

# `make coverage` measures the processes that run tests, not what these start: some is killed, or must be quick.
if "PYTEST_XDIST_WORKER" in os.environ and (_MEASURED := os.environ.get("TESSERA_TEST_COVERAGE")):
    import coverage

    os.environ["COVERAGE_PROCESS_START"] = _MEASURED
    coverage.process_startup()
    del os.environ["COVERAGE_PROCESS_START"]

from tessera import dtypes, errors
from tessera.config import Group, HookChain, epoch, knobs
from tests.cores import processes_for_tests, threads_of_launches

# Tests never read or fill the user's cache. Set before anything reads the configuration.
_CACHE = tempfile.mkdtemp(prefix="tessera-test-cache-")
os.environ["TESSERA_CACHE_DIR"] = _CACHE
os.environ["TESSERA_STRICT"] = "1"  # a fault in an optimisation is an error
# Every kernel that a test compiles for GPUs is checked (docs/synchronization.md).
os.environ.setdefault("TESSERA_CHECK_SYNCHRONIZATION", "1")
# What a test leaves in the folder of temporary files, such as reproducers of errors that it means, goes with the
# process; pytest's own folders stay where they are looked for.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
tempfile.tempdir = tempfile.mkdtemp(prefix="tessera-test-files-")
atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)

# Processes that run tests side by side share the cores, threads of launches and compilations included.
if _PROCESSES := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("TESSERA_NUM_THREADS", str(threads_of_launches(_PROCESSES)))

from tessera.runtime.driver import driver  # noqa: E402  after the environment is set

# The front end raises the limit for deep kernels; Hypothesis warns when that happens while it runs an example. How long
# examples take is the machine's affair: a busy one is no reason to fail.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 8000))
if importlib.util.find_spec("hypothesis") is not None:
    import hypothesis

    _BUSY = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=_BUSY)
    hypothesis.settings.load_profile("busy")

DEVICES = {
    "interpreter": ["interpreter"],
    "cpu": ["cpu"],
    "cuda": ["cuda"],
    "simt": ["simt"],  # GPU code up to LLVM IR, run by a simulator
    "all": ["interpreter", "cpu", "cuda"],
}


OFTEN = 200  # tests after which what they leave in caches is set aside from collections
finished = itertools.count(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means; xdist asks."""
    return processes_for_tests()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from searching 26,000 tests again and again."""
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    """Keep full collections short, which some tests ask for: after 20,000 others each took two seconds."""
    if next(finished) % OFTEN == 0:
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=list(DEVICES),
        default=None,
        help="where language tests run; default: interpreter and cpu",
    )


@cache
def has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("--device")
    names = DEVICES[chosen] if chosen else ["interpreter", "cpu"]
    if metafunc.definition.get_closest_marker("gpu"):
        names = ["cuda"]
    metafunc.parametrize("device", names, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="needs torch and a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu") and not has_cuda():
            item.add_marker(skip)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Where the test runs: `device.array(...)` makes a kernel argument, `device.numpy(x)` reads it back."""
    if request.param == "cuda" and not has_cuda():
        pytest.skip("needs torch and a CUDA device")
    driver.set_active(request.param)
    yield Device(request.param)
    driver.reset_active()


@pytest.fixture(autouse=True)
def settings_of_its_own() -> Iterator[None]:
    """What a test leaves of knobs, and of the name under which messages speak of tessera, is undone after it."""
    before = [assigned(group) for group in knobs.groups()]
    package = errors.Spelling.package
    yield
    errors.Spelling.package = package
    for group, values in zip(knobs.groups(), before, strict=True):
        if (now := assigned(group)) != values:
            group.overrides = {n: v for n, v in group.overrides.items() if n not in now} | values
            epoch.value += 1


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process of its own, nobody has imported a Triton yet: for commands that run a program in this process,
    in which torch may have imported OpenAI's for another test. What they change is undone."""

    def aside() -> dict[str, ModuleType]:
        names = [n for n in sys.modules if n.partition(".")[0] == "triton"]
        return {n: sys.modules.pop(n) for n in names}

    for name in ("path", "meta_path", "argv"):
        monkeypatch.setattr(sys, name, [*getattr(sys, name)])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    before = aside()
    yield
    aside()
    sys.modules.update(before)


def assigned(group: Group) -> dict[str, object]:
    """The knobs that were set from Python. Chains of hooks stay: who adds a hook removes it."""
    return {n: v for n, v in group.overrides.items() if not isinstance(v, HookChain)}


class Device:
    """Makes and reads kernel arguments: NumPy arrays on `cpu` and `interpreter`, torch tensors on `cuda`.

    bf16 and fp8 values live as raw bits in NumPy; they are given to a kernel as a typed view of those bits
    (`tessera.reinterpret`), or as torch tensors of the true type.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Device({self.name})"

    @property
    def is_cuda(self) -> bool:
        return self.name == "cuda"

    def array(self, values: Any, dtype: Any = None) -> Any:
        """A kernel argument holding `values`; `dtype` is a tessera or NumPy dtype or name ("bf16", "i32")."""
        host = np.asarray(values)
        kind = as_dtype(dtype) if dtype is not None else None
        if kind is not None and not is_native(kind):
            return self._typed_bits(encode(host, kind), kind)
        if kind is not None:
            host = host.astype(numpy_name(kind))
        host = np.ascontiguousarray(host)
        return self._upload(host) if self.is_cuda else host.copy()

    def zeros(self, shape: int | tuple[int, ...], dtype: Any = "fp32") -> Any:
        return self.array(np.zeros(shape, np.float32), dtype)

    def full(self, shape: int | tuple[int, ...], value: float, dtype: Any = "fp32") -> Any:
        return self.array(np.full(shape, value), dtype)

    def numpy(self, x: Any) -> np.ndarray:
        """The values of a kernel argument on the host; bf16 and fp8 come back as float32."""
        if self.is_cuda:
            kind = dtypes.by_array_name(str(x.dtype))
            if kind is not None and not is_native(kind):
                return x.float().cpu().numpy()
            return x.cpu().numpy()
        if isinstance(x, np.ndarray):
            return x
        return decode(x.base, as_dtype(x.dtype))

    def synchronize(self) -> None:
        if self.is_cuda:
            import torch

            torch.cuda.synchronize()

    def _upload(self, host: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(host).cuda()

    def _typed_bits(self, bits: np.ndarray, kind: dtypes.dtype) -> Any:
        if self.is_cuda:
            import torch

            names = {"bf16": "bfloat16", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2"}
            return self._upload(bits).view(getattr(torch, names[kind.name]))
        from tessera.runtime.arguments.tensors import reinterpret

        return reinterpret(bits, kind)


def as_dtype(name: Any) -> dtypes.dtype:
    if isinstance(name, dtypes.dtype):
        return name
    found = dtypes.by_array_name(str(np.dtype(name)) if not isinstance(name, str) else name)
    return found or dtypes.by_short_name(name)


def is_native(kind: dtypes.dtype) -> bool:
    """NumPy has the type itself."""
    return kind.name != "bf16" and not kind.is_fp8()


def numpy_name(kind: dtypes.dtype) -> str:
    return {"int1": "bool", "fp16": "float16", "fp32": "float32", "fp64": "float64"}.get(
        kind.name, kind.name
    )


def encode(values: np.ndarray, kind: dtypes.dtype) -> np.ndarray:
    """Bits of `values` in `kind`, rounded to nearest even; fp8 saturates."""
    if kind.name == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
        nan = np.isnan(np.asarray(values, np.float32))
        return np.where(nan, 0x7FC0, rounded).astype(np.uint16)
    table = decode_table(kind)[:128]
    codes = np.flatnonzero(np.isfinite(table))
    magnitudes = table[codes]
    x = np.abs(np.asarray(values, np.float64))
    above = np.clip(np.searchsorted(magnitudes, x), 1, len(codes) - 1)
    low, high = magnitudes[above - 1], magnitudes[above]
    take_high = (x - low > high - x) | ((x - low == high - x) & (above % 2 == 0))
    code = codes[np.where(take_high | (x >= high), above, above - 1)]
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def decode(bits: np.ndarray, kind: dtypes.dtype) -> np.ndarray:
    if kind.name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return decode_table(kind)[bits.view(np.uint8)].astype(np.float32)


@cache
def decode_table(kind: dtypes.dtype) -> np.ndarray:
    """The value of each of the 256 codes of an fp8 type (fp8e4nv and fp8e5: the two that GPUs compute with)."""
    codes = np.arange(256)
    exponent = (codes & 0x7F) >> kind.mantissa
    fraction = (codes & ((1 << kind.mantissa) - 1)) / (1 << kind.mantissa)
    normal = np.ldexp(1.0 + fraction, exponent - kind.bias)
    value = np.where(exponent == 0, np.ldexp(fraction, 1 - kind.bias), normal)
    if kind.name == "fp8e4nv":
        value[codes & 0x7F == 0x7F] = np.nan
    elif kind.name == "fp8e5":
        value[codes & 0x7F == 0x7C] = np.inf
        value[codes & 0x7F > 0x7C] = np.nan
    else:
        raise ValueError(f"no table for {kind}")
    return np.where(codes & 0x80, -value, value)
