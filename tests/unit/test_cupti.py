"""Times of kernels by CUPTI, here a fake one that fills buffers with records as the library lays them out."""

# pyright: basic
from __future__ import annotations

import ctypes
import struct
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.profiler import blocks, cupti
from tessera.profiler.cupti import Activity, Ran, Unusable, seconds_of

KERNEL_BYTES = 216  # of a CUpti_ActivityKernel10
ROOM = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
FILLED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class Library:
    """CUPTI with records that were not handed over yet; `calls`: what it was asked for."""

    def __init__(self, version: int = 130001, **results: int) -> None:
        self.version, self.results = version, results
        self.calls: list[str] = []
        self.records: list[bytes] = []
        self.names: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in cupti.SIGNATURES:
            raise AttributeError(name)

        def function(*args: Any) -> int:
            self.calls.append(name.removeprefix("cupti"))
            code = self.results.get(name, 0)
            answer = getattr(self, f"do_{name.removeprefix('cupti')}", None)
            return code or (answer(*args) or 0 if answer is not None else 0)

        return function

    def do_GetVersion(self, out: Any) -> None:
        out._obj.value = self.version

    def do_ActivityRegisterCallbacks(self, room: int, filled: int) -> None:
        self.room, self.filled = ROOM(room), FILLED(filled)

    def kernel(
        self, name: str, number: int, start: int, end: int, kind: int = 10, node: int = 0
    ) -> None:
        """Record a kernel. The numbers are in nanoseconds."""
        text = self.names.setdefault(name, ctypes.create_string_buffer(name.encode()))
        record = bytearray(KERNEL_BYTES)
        struct.pack_into("=I", record, 0, kind)
        struct.pack_into("=QQ", record, 16, start, end)
        struct.pack_into("=I", record, 92, number)
        struct.pack_into("=Q", record, 104, ctypes.addressof(text))
        struct.pack_into("=Q", record, 144, node)
        self.records.append(bytes(record))

    def hand_over(self) -> None:
        """Fill one buffer."""
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(1)
        self.room(*(ctypes.addressof(x) for x in (buffer, size, most)))
        assert most.value == 0 and buffer.value and buffer.value % 8 == 0
        found = b"".join(self.records)
        assert len(found) <= size.value
        ctypes.memmove(buffer.value, found, len(found))
        self.filled(None, 0, buffer.value, size.value, len(found))
        self.records = []

    def do_ActivityFlushAll(self, flags: int) -> None:
        self.hand_over()

    def do_ActivityGetNextRecord(self, buffer: int, used: int, record: Any) -> int:
        at = record._obj.value
        at = buffer if at is None else at + KERNEL_BYTES
        if at >= buffer + used:
            return 12  # CUPTI_ERROR_MAX_LIMIT_REACHED
        record._obj.value = at
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(cupti, "_library", lambda: made)
    monkeypatch.setattr(Activity, "_current", None)
    return made


def test_records_of_all_buffers_in_the_order_of_the_launches(library: Library):
    activity = Activity()
    library.kernel("late", 9, 5000, 5800)
    library.hand_over()
    library.kernel("early", 3, 100, 1100)
    library.kernel("early", 4, 1200, 2700)
    library.kernel("early", 5, 2800, 2900, node=7)  # of a graph
    library.kernel("copy", 6, 2800, 2900, kind=1)
    found = [(ran.name, ran.number, round(1e9 * ran.seconds)) for ran in activity.finish()]
    assert found == [("early", 3, 1000), ("early", 4, 1500), ("late", 9, 800)]
    ended = ["ActivityDisable", "Finalize"]
    assert library.calls[:5] == [
        "GetVersion", "Subscribe", "Unsubscribe", "ActivityRegisterCallbacks", "ActivityEnable",
    ]  # fmt: skip
    assert library.calls[-2:] == ended
    assert Activity().finish() == []  # and again


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (Library(version=14), "the records of CUPTI's version 14 are not known"),
        (Library(version=140000), "the records of CUPTI's version 140000 are not known"),
        (Library(cuptiSubscribe=39), "another tool uses CUPTI"),
        (Library(cuptiActivityEnable=35), "cuptiActivityEnable returns 35"),
    ],
)
def test_why_not(monkeypatch: pytest.MonkeyPatch, made: Library, reason: str):
    monkeypatch.setattr(cupti, "_library", lambda: made)
    with pytest.raises(Unusable) as e:
        Activity()
    assert str(e.value) == reason
    assert Activity._current is None


def test_one_user_at_a_time(library: Library):
    activity = Activity()
    with pytest.raises(Unusable, match="another profile uses CUPTI"):
        Activity()
    activity.finish()


def test_a_machine_without_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cupti, "SONAMES", ("libno_such_cupti.so.13",))
    monkeypatch.setattr(cupti, "PATTERNS", ())
    monkeypatch.setattr(cupti, "TOOLKIT", "/nowhere/*")
    with pytest.raises(Unusable, match="CUPTI is not installed"):
        Activity()


def test_another_tool_that_comes_later_keeps_it(library: Library):
    activity = Activity()
    library.kernel("mine", 1, 0, 1000)
    library.hand_over()
    library.results["cuptiSubscribe"] = 39
    del library.calls[:]
    assert [r.name for r in activity.finish()] == ["mine"]
    assert set(library.calls) == {"Subscribe", "ActivityGetNextRecord"}


def test_times_by_name_and_order():
    ran = [Ran("a", 1, 1.0), Ran("other", 2, 9.0), Ran("b", 3, 2.0), Ran("a", 4, 3.0)]
    assert seconds_of(["a", "b", "a"], ran) == [1.0, 2.0, 3.0]
    with pytest.warns(UserWarning, match="2 launches of a have no time, and are left out"):
        assert seconds_of(["a", "a", "b", "a", "a"], ran) == [1.0, 3.0, 2.0, None, None]
    with pytest.warns(UserWarning, match="a ran 2 times for 1 launches: each has the mean time"):
        assert seconds_of(["b", "a"], ran) == [2.0, 2.0]


# --- in profiles -------------------------------------------------------------------------------------------------
class Gpu:
    """What profiles ask of a driver."""

    def __init__(self) -> None:
        self.waited: list[int] = []
        self.device = 2

    def address(self, name: str) -> int:
        assert name == "cuStreamIsCapturing"  # nobody asks for events
        return 0xBAD

    def current_device(self) -> int:
        return 2

    def bind(self, device: int) -> None:
        self.device = device

    def synchronize(self) -> None:
        self.waited.append(self.device)

    def is_capturing(self, stream: int) -> bool:
        return stream == 7


def metadata(kernel: Any, stream: int = 0) -> Any:
    about = {"stream": stream}
    return SimpleNamespace(launch=(kernel, (1, 1, 1), ()), data=about, extras=(), get=lambda: about)


def kernel_named(name: str) -> Any:
    return SimpleNamespace(
        name=name, hash=name, target=SimpleNamespace(backend="cuda"), src=SimpleNamespace(fn=None)
    )


def test_a_profile_matches_native_and_other_launches(
    library: Library, monkeypatch: pytest.MonkeyPatch
):
    import tessera.profiler as module

    gpu, a, b = Gpu(), kernel_named("a"), kernel_named("b")
    for place in (module.cuda, blocks.cuda):
        monkeypatch.setattr(place, "driver", lambda: gpu)
    with tessera.profile() as p:
        p.enter(shown := metadata(a))
        p._leave(shown)
        p.enter(captured := metadata(a, stream=7))
        p._leave(captured)
        place = p.timing(b, 0)
        assert place is not None
        block, tag = place
        clock = p._raw[0][3]
        for i, code in enumerate((0, blocks.INVALID_HANDLE, 0)):  # as native code does
            block._rows[8 * i : 8 * i + 8] = [
                tag,
                i + 1,
                1,
                1,
                clock + i + 1,
                clock + i + 2,
                0,
                code,
            ]
        block._timing[block._count] = 3
        library.kernel("a", 1, 1000, 3000)
        library.kernel("b", 2, 3000, 3500)
        library.kernel("b", 3, 4000, 7000)
    found = [(x.kernel, x.grid, round(x.seconds * 1e9)) for x in p.launches]
    assert found == [("a", (1, 1, 1), 2000), ("b", (1, 1, 1), 500), ("b", (3, 1, 1), 3000)]
    assert gpu.waited == [0, 2, 2]
    assert gpu.device == 2
    assert p.gpu_timer == "CUPTI"
    assert str(p).splitlines()[-1] == "times on the GPU by CUPTI"
    assert "Finalize" in library.calls


def test_a_profile_says_why_it_uses_events(library: Library):
    p = tessera.profile(cupti=False)
    assert not p._by_cupti()
    assert p.gpu_timer == "CUDA events (as asked for)"
    library.results["cuptiSubscribe"] = 39
    p = tessera.profile()
    assert not p._by_cupti()
    assert not p._by_cupti()
    assert library.calls.count("Subscribe") == 1
    assert str(p).endswith("times on the GPU by CUDA events (another tool uses CUPTI)")


@tessera.jit
def plain(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2.0 * tl.load(x + at, at < n), at < n)


def test_native_launches_that_a_graph_captures_are_marked(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    monkeypatch.delitem(
        sys.modules, "torch.autograd.profiler", raising=False
    )  # launches stay native
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.POINTER(ctypes.c_int32))

    def capturing(stream: int, status: Any) -> int:
        asked.append(stream)
        status[0] = len(asked) == 2
        return 0

    function = kind(capturing)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    monkeypatch.setattr(
        blocks.Block,
        "_address",
        lambda self, name, wanted: address * (name == "cuStreamIsCapturing"),
    )
    x = np.ones(256, np.float32)
    plain[(1,)](x, 256, BLOCK=256)
    with tessera.profile() as p:
        for n in range(1, 5):
            plain[(n,)](x, 256, BLOCK=256)
    assert len(asked) == 3  # the first launch in a profile is not native
    assert [q.grid[0] for q in p.launches] == [1, 2, 4]
