"""The native launch path for CUDA, with functions of this test in place of the driver's and of torch's."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false
from __future__ import annotations

import ctypes
import itertools
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera.language as tl
from tessera.config import epoch
from tessera.language.callable import JITCallable
from tessera.language.watching import Place, place_in, place_of_cell
from tessera.profiler import blocks
from tessera.runtime.cuda.driver_api import LaunchConfig, launch_config
from tessera.runtime.native import fast_path as fast_launch
from tessera.runtime.native.array_types import ArrayTypes
from tessera.runtime.native.fast_path import FastPath, Start, Units
from tessera.runtime.native.structures import READ_TENSOR, Tag
from tests.unit.fast_launch_kit import READERS, Tensor

ENTRY = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(LaunchConfig),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
RECORD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))


def kernel(x, y, n, scale: tl.float16, BLOCK: tl.constexpr = 8, flag=None):
    pass


class Machine:
    """A GPU: counts what reaches it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        types = ArrayTypes()
        address, dtype, cuda, storage, size = (
            ctypes.cast(r, ctypes.c_void_p).value or 0 for r in READERS
        )
        types.add(Tensor, READ_TENSOR, (0, address, dtype, 0, cuda, 0, storage, size), READERS)
        monkeypatch.setattr(fast_launch, "array_types", lambda: types)
        self.launches: list[tuple[Any, ...]] = []
        self.python: list[tuple[Any, ...]] = []
        self.result, self.device_context, self.current_stream = 0, 0x1000, 77
        self.template = launch_config(threads=128, shared=1024, cluster=(2, 1, 1))
        self.entry, self.context = ENTRY(self.launch), CONTEXT(self.current)
        self.fail_with: Any = RuntimeError
        self.path = FastPath(JITCallable(kernel).params, [], self.fallback)
        self.places: list[Place] = []
        self.around: tuple[Any, Any] = (None, None)
        self.timing: Any = None

    def launch(self, config: Any, function: int, slots: Any, extra: Any) -> int:
        c = config.contents
        values = [ctypes.c_uint64.from_address(slots[i]).value for i in range(self.count)]
        self.launches.append((tuple(c.grid), c.stream, c.block[0], c.shared, function, values))
        return self.result

    def current(self, out: Any) -> int:
        out[0] = self.device_context
        return 0

    def fail(self, result: int) -> None:
        if self.fail_with is not None:
            raise self.fail_with(f"result {result}")

    def stream(self, device: int) -> int:
        assert device == 3
        return self.current_stream

    def fallback(self, key: bytes | None, grid: Any, *args: Any, **options: Any) -> str:
        names = ["x", "y", "n", "scale", "BLOCK", "flag"]
        named = {**dict(zip(names, args)), **{k: v for k, v in options.items() if k in names}}
        options = {k: v for k, v in options.items() if k not in names}
        self.python.append((key, grid, args, options))
        values = tuple(named.get(n, {"BLOCK": 8, "flag": None}.get(n)) for n in names)
        self.count = 4
        start = Start(
            cuda=True, entry=ctypes.cast(self.entry, ctypes.c_void_p).value or 0, function=0xF00D,
            config=self.template.address, pool=0, stream=self.stream, device=3, fail=self.fail,
            context=ctypes.cast(self.context, ctypes.c_void_p).value or 0, keep=self,
            enter=self.around[0], leave=self.around[1],
            timing=self.timing, tag=9,
        )  # fmt: skip
        if key is not None:
            self.path.install(
                key, values, Units([0, 1, 2, 3], 6), options, self, start, self.places
            )
        return "python"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def warm(m: Machine, *args: Any, **options: Any) -> None:
    """Launch until the native path has it: the first launch tells where CUDA's current context can be asked."""
    assert m.path.launch((1,), *args, **options) == "python"
    if m.path.launch((1,), *args, **options) == "python":
        assert m.path.launch((1,), *args, **options) is m
    m.launches.clear()
    m.python.clear()


X, Y = Tensor(0x7000), Tensor(0x7010)


def test_a_launch(machine: Machine):
    warm(machine, X, Y, 5, 0.5)
    assert machine.path.launch((4, 3), X, Y, -7, 1.0) is machine
    half = int(np.float16(1.0).view(np.uint16))
    assert machine.launches == [
        ((8, 3, 1), 77, 128, 1024, 0xF00D, [0x7000, 0x7010, 2**64 - 7, half])
    ]
    machine.current_stream = 78
    machine.path.launch(lambda meta: (meta["n"],), X, Y, 9, scale=1.0, BLOCK=8)
    assert machine.launches[1][:2] == ((18, 1, 1), 78)
    assert not machine.python
    machine.path.launch((0,), X, Y, -7, 1.0)
    assert len(machine.launches) == 2


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((Tensor(0x7004), Y, 5, 0.5), {}), ((Tensor(0x7000, tl.float16), Y, 5, 0.5), {}), ((X, Y, 16, 0.5), {}),
        ((X, Y, 1, 0.5), {}), ((X, Y, 2**31, 0.5), {}), ((X, Y, 2.0, 0.5), {}), ((X, Y, True, 0.5), {}),
        ((X, Y, None, 0.5), {}), ((X, None, 5, 0.5), {}), ((X, Y, 5, 0.5), {"BLOCK": 16}),
        ((X, Y, 5, 0.5), {"BLOCK": 8.0}),
        ((X, Y, 5, 0.5), {"BLOCK": True}), ((X, Y, 5, 0.5), {"num_warps": 4}), ((X, Y, 5, 0.5, 8, 3), {}),
        ((X, Y, 5, 0.5), {"flag": X}), ((X, Tensor(0x7010, nbytes=1 << 31), 5, 0.5), {}),
    ],
)  # fmt: skip
def test_other_keys(machine: Machine, args: Any, options: Any):
    warm(machine, X, Y, 5, 0.5)
    assert machine.path.launch((1,), *args, **options) == "python"
    assert machine.python[0][0] is not None
    assert machine.path.launch((1,), X, Y, 7, 0.25) is machine


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((X, Y, "n", 0.5), {}), ((X, Y, [1], 0.5), {}), ((X, Y, (1, "s"), 0.5), {}), ((X, Y, 2**64, 0.5), {}),
        ((X, Y, 5, "s"), {}), ((X, Y, 5), {}), ((), {}), ((X,) * 7, {}), ((X, Y, 5, 0.5), {"unknown": 1}),
        ((X, Y, 5, 0.5), {"x": X}), ((X, Y, np.complex64(5), 0.5), {}), ((X, Y, 5, 0.5), {"BLOCK": 2**70}),
    ],
)  # fmt: skip
def test_what_python_must_see_to(machine: Machine, args: Any, options: Any):
    warm(machine, X, Y, 5, 0.5)
    assert machine.path.launch((1,), *args, **options) == "python"
    assert machine.python == [(None, (1,), args, options)] or machine.python[0][2] == args
    assert machine.python[0][0] is None


def test_options_stay_native(machine: Machine):
    options = {
        "num_warps": 8,
        "num_stages": 2,
        "maxnreg": 40,
        "debug": None,
    }  # 40 looks like the tag of a host array
    for _ in range(2):
        machine.path.launch((1,), X, Y, 5, 0.5, **options)
    assert machine.path.launch((1,), X, Y, 5, 0.5, **options) is machine


def test_tensors_on_the_host_are_left_to_python(machine: Machine):
    warm(machine, X, Y, 5, 0.5)
    for _ in range(3):
        assert machine.path.launch((1,), X, Tensor(0x7010, cuda=False), 5, 0.5) == "python"
        assert machine.path.launch((1,), Tensor(0x7000, cuda=False), Y, 5, 0.5) == "python"


def test_each_context_has_its_own_kernel(machine: Machine):
    warm(machine, X, Y, 5, 0.5)
    machine.device_context = 0x2000
    assert machine.path.launch((1,), X, Y, 5, 0.5) == "python"
    assert machine.path.launch((1,), X, Y, 5, 0.5) is machine
    machine.device_context = 0x1000
    assert machine.path.launch((1,), X, Y, 5, 0.5) is machine


def test_failed_launches(machine: Machine):
    warm(machine, X, Y, 5, 0.5)
    machine.result = 701
    before = sys.getrefcount(machine)
    for _ in range(50):
        with pytest.raises(RuntimeError, match="result 701"):
            machine.path.launch((1,), X, Y, 5, 0.5)
    assert sys.getrefcount(machine) <= before + 5
    machine.fail_with = None
    assert machine.path.launch((1,), X, Y, 5, 0.5) is machine


def test_timed_launches_fill_rows(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    """Events are recorded before and after, on the launch's stream; a full block sends the launch to Python."""
    recorded: list[tuple[int, int, int]] = []
    record = RECORD(lambda e, s: recorded.append((e, s, len(machine.launches))) or 0)
    api = SimpleNamespace(
        current_context=lambda: 1,
        event_create=itertools.count(500).__next__,
        address=lambda name: ctypes.cast(record, ctypes.c_void_p).value,
    )
    monkeypatch.setattr(blocks.cuda, "driver", lambda: api)
    monkeypatch.setattr(blocks, "ROWS", 3)
    block = machine.timing = blocks.Block(on_gpu=True)
    warm(machine, X, Y, 5, 0.5)
    used = block.used
    recorded.clear()
    start = time.perf_counter_ns()
    assert machine.path.launch((4, 3), X, Y, -7, 1.0) is machine
    machine.result = 2
    with pytest.raises(RuntimeError, match="result 2"):
        machine.path.launch((1,), X, Y, -7, 1.0)
    machine.result = 0
    first = 500 + 2 * used
    assert recorded == [(first, 77, 0), (first + 1, 77, 1), (first + 2, 77, 1)]
    rows = np.array(block._rows[:]).reshape(3, -1)[used:]
    assert rows[0, :4].tolist() == [9, 4, 3, 1]
    assert start <= rows[0, 4] <= rows[0, 5] <= time.perf_counter_ns()
    assert rows[1, 5] == 0  # it failed
    while not block.full:
        assert machine.path.launch((1,), X, Y, -7, 1.0) is machine
    assert machine.path.launch((1,), X, Y, -7, 1.0) == "python"


def test_hooks_around_a_launch(machine: Machine):
    events: list[Any] = []

    def enter(*about: Any) -> Any:
        events.append((*about, len(machine.launches)))
        return events

    def leave(metadata: Any) -> None:
        assert metadata is events
        events.append(len(machine.launches))

    machine.around = (enter, leave)
    warm(machine, X, Y, 5, 0.5)
    events.clear()
    machine.current_stream = (1 << 64) - 8
    assert machine.path.launch((4, 3), X, Y, 5, 0.5) is machine
    assert events == [(4, 3, 1, (1 << 64) - 8, X, Y, 5, 0.5, 8, None, 0), 1]
    machine.result = 701
    before = sys.getrefcount(events)
    for _ in range(50):
        with pytest.raises(RuntimeError, match="result 701"):  # nothing to be left
            machine.path.launch((1,), X, Y, 5, 0.5)
    assert len(events) == 2 + 50
    assert sys.getrefcount(events) <= before + 5


def test_changes_send_one_launch_through_python(machine: Machine):
    warm(machine, X, Y, 5, 0.5)
    epoch.value += 1
    assert machine.path.launch((1,), X, Y, 5, 0.5) == "python"
    assert machine.path.launch((1,), X, Y, 5, 0.5) is machine
    machine.path.clear()
    assert machine.path.launch((1,), X, Y, 5, 0.5) == "python"


def test_captured_globals(machine: Machine):
    scope = {"LIMIT": tl.constexpr(3)}
    machine.places = [place_in(scope, "LIMIT")]
    warm(machine, X, Y, 5, 0.5)
    kept = scope["LIMIT"]
    scope["LIMIT"] = tl.constexpr(4)
    assert machine.path.launch((1,), X, Y, 5, 0.5) == "python"
    del scope["LIMIT"]
    assert machine.path.launch((1,), X, Y, 5, 0.5) == "python"
    scope["LIMIT"] = kept
    assert machine.path.launch((1,), X, Y, 5, 0.5) is machine


def test_captured_cells(machine: Machine):
    def outer():
        limit: Any = tl.constexpr(3)

        def change(x: Any) -> None:
            nonlocal limit
            limit = x

        return change, lambda: limit

    change, read = outer()
    assert read.__closure__ is not None
    (cell,) = read.__closure__
    kept = read()
    machine.places = [place_of_cell(cell)]
    warm(machine, X, Y, 5, 0.5)
    change(tl.constexpr(4))
    assert machine.path.launch((1,), X, Y, 5, 0.5) == "python"
    del cell.cell_contents
    assert machine.path.launch((1,), X, Y, 5, 0.5) == "python"
    change(kept)
    assert machine.path.launch((1,), X, Y, 5, 0.5) is machine


def test_errors_of_the_stream_and_the_grid(machine: Machine):
    warm(machine, X, Y, 5, 0.5)
    machine.current_stream = "none"  # type: ignore[assignment]
    with pytest.raises(TypeError):
        machine.path.launch((1,), X, Y, 5, 0.5)
    machine.current_stream = 1
    with pytest.raises(ZeroDivisionError):
        machine.path.launch(lambda _: 1 // 0, X, Y, 5, 0.5)
    assert machine.path.launch((2**31,), X, Y, 5, 0.5) == "python"
    assert machine.path.launch("grid", X, Y, 5, 0.5) == "python"
    asked: list[int] = []

    def misspelt(args: dict[str, Any]) -> tuple[int]:
        asked.append(1)
        return (args["N"],)  # Python asks again, and tells the names

    assert machine.path.launch(misspelt, X, Y, 5, 0.5) == "python"
    assert asked == [1]


def test_types_with_members_in_c_are_learnt():
    types = ArrayTypes()
    assert not types.learn(X)  # its members are Python's
    assert types.learn(np.zeros(1))


def test_tags_differ():
    tags = [t for name, t in vars(Tag).items() if not name.startswith("_")]
    assert len(set(tags)) == len(tags) > 10


def test_torch_tensors_are_learnt():
    torch = pytest.importorskip("torch")
    types = ArrayTypes()
    assert types.learn(torch.zeros(1))
    assert types.learn(torch.nn.Parameter(torch.zeros(1)))
