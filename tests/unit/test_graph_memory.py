"""The memory of a graph: buffers that live at the same time lie apart, and little is held that nobody needs."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.calls import source
from tessera.graph.calls.executable import Executable, compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.emit.tiling import Machine
from tessera.graph.index import sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.planning.breaks import LEAST, Held, Lease, choose
from tessera.graph.planning.memory import Buffer, cut, lower_bound, place, rounded
from tessera.graph.planning.plan import FOREIGN, INPUT, OUTPUT, Allocation, Extern
from tessera.ir import Value


def some_buffers(seed: int, count: int) -> list[Buffer]:
    draw = random.Random(seed)
    made: list[Buffer] = []
    for _ in range(count):
        first = draw.randrange(count)
        size = draw.choice([0, 4, 300, 1024, 4096, 65536]) * draw.randrange(1, 9)
        made.append(Buffer(first, first + draw.choice([0, 1, 1, 2, 5, count // 3]), size))
    return made


@pytest.mark.parametrize("seed", range(8))
def test_buffers_that_meet_lie_apart(seed: int):
    buffers = some_buffers(seed, 60)
    placed = place(buffers)
    for i, a in enumerate(buffers):
        assert (
            placed.offsets[i] % (256 if a.size >= 1 << 14 else 64 if a.size >= 1 << 12 else 16) == 0
        )
        assert placed.offsets[i] + a.size <= placed.size
        for j, b in enumerate(buffers[:i]):
            if a.size and b.size and a.first <= b.last and b.first <= a.last:
                low, high = sorted(((placed.offsets[i], a.size), (placed.offsets[j], b.size)))
                assert low[0] + low[1] <= high[0]


@pytest.mark.parametrize("seed", range(8))
def test_little_more_than_what_is_alive_at_once_is_taken(seed: int):
    buffers = some_buffers(seed, 60)
    assert lower_bound(buffers) <= place(buffers).size <= 1.25 * lower_bound(buffers)


def test_a_buffer_takes_the_place_of_one_that_died():
    placed = place([Buffer(0, 2, 1024), Buffer(1, 3, 512), Buffer(3, 4, 1024)])
    assert placed.offsets == (0, 1024, 0)
    assert placed.size == 1536


@pytest.mark.parametrize("size", [1, 16, 20, 1023, 1025, 4095, 4097, 16383, 16385, 100001])
def test_a_buffer_is_rounded_up_by_a_small_part_of_it(size: int):
    assert size <= rounded(size) <= max(size * (1 + 1 / 64), size + 15)


def test_an_arena_ends_with_what_lies_last_in_it():
    """Three small tensors, two of which live at a time."""
    placed = place([Buffer(0, 1, 100), Buffer(1, 2, 100), Buffer(2, 3, 36)])
    assert placed.offsets == (0, 112, 0) and placed.size == 212
    assert place([Buffer(0, 0, 16385)]).size == 16385


class Copying(NumpyHost):
    """Gives kernels copies of what does not begin at a multiple of 16 bytes, as GPUs need it."""

    def aligned(self, array: Any) -> Any:
        memory = np.zeros(array.nbytes + 64, np.uint8)
        start = -memory.ctypes.data % 64
        copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy


def test_arguments_that_are_written_and_not_aligned(monkeypatch: pytest.MonkeyPatch):
    """A kernel that writes to the copy of an argument must not leave the argument as it was."""
    monkeypatch.setattr(source.Writer, "wants_alignment", lambda w: True)
    g = GraphBuilder("doubled")
    x = g.input("x", TensorType((96,), float32))
    twice = g.loop([96], lambda i: g.mul(g.load(x, i), g.const(2.0, float32)))
    g.write(x, twice)
    g.output(g.loop([96], lambda i: g.add(g.load(x, i), g.const(1.0, float32))))
    exe = compile_graph(g.finish(), Copying())
    for first in (0, 1):  # elements of four bytes in front of the argument
        memory = np.arange(100, dtype=np.float32)
        argument = memory[first : first + 96]
        before = memory.copy()
        (out,) = exe([argument])
        np.testing.assert_array_equal(out, before[first : first + 96] + 1)
        np.testing.assert_array_equal(argument, before[first : first + 96] * 2)
        np.testing.assert_array_equal(memory[first + 96 :], before[first + 96 :])


# --- several arenas -------------------------------------------------------------------------------------------------
def held(buffers: list[Buffer], parts: list[tuple[int, ...]], ends: list[int]) -> list[int]:
    """The bytes of all arenas in each group of steps."""
    found = [0] * len(ends)
    for part in parts:
        chosen = [buffers[k] for k in part]
        first, last = min(b.first for b in chosen), max(b.last for b in chosen)
        for g, end in enumerate(ends):
            start = ends[g - 1] + 1 if g else 0
            found[g] += place(chosen).size * (first <= end and start <= last)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_several_arenas_hold_less_than_one(seed: int):
    draw = random.Random(seed)
    buffers = some_buffers(seed, 60)
    ends = sorted({*draw.sample(range(120), 20), max(b.last for b in buffers)})
    beside = [draw.randrange(1 << 20) for _ in ends]
    parts = cut(buffers, ends, beside)
    assert sorted(k for part in parts for k in part) == list(range(60))
    assert 1 < len(parts) < 30
    everything = tuple(range(60))

    def peak(parts: list[tuple[int, ...]]) -> int:
        return max(a + b for a, b in zip(held(buffers, parts, ends), beside, strict=True))

    assert peak(parts) < peak([everything])
    assert peak(parts) <= peak([(k,) for k in everything])


def test_what_lives_apart_is_taken_apart():
    """One arena would hold a MiB of the first group's and two of the third's in the second, where most is held."""
    ends, beside = [1, 3, 5], [0, 3 << 20, 0]
    buffers = [Buffer(0, 1, 1 << 20), Buffer(4, 5, 2 << 20), Buffer(0, 5, 256)]
    parts = cut(buffers, ends, beside)
    assert held(buffers, parts, ends)[1] == 256
    # Fewer calls of the library, where that holds no more.
    assert len(cut(buffers, ends, [0, 0, 0])) == 1


def test_calls_of_the_library_keep_room():
    """In the second of three groups a call may need as much again: no arena that is larger than what it holds then."""
    ends, beside = [1, 3, 5], [0, 1 << 20, 2 << 20]
    buffers = [Buffer(0, 3, 1 << 18), Buffer(4, 5, 1 << 20)]
    assert len(cut(buffers, ends, beside)) == 1
    parts = cut(buffers, ends, beside, [0, 2 << 20, 0])
    assert held(buffers, parts, ends) == [1 << 18, 1 << 18, 1 << 20]


# --- memory of the dead ---------------------------------------------------------------------------------------------
N = 64
SIZE = N * N * 4
GPU = Machine("cuda", exact=False, tile=64, row=64, step=64, lanes=8, columns=64, walk=16)


class Doubling(NumpyHost):
    def extern(self, op: Any, arrays: Any, symbols: Any) -> tuple[Any, ...]:
        return (arrays[0] * 2,)


def each(g: GraphBuilder, *xs: Value) -> Value:
    """The sum of tensors and 1, element by element."""

    def body(i: Value, j: Value) -> Value:
        total = g.const(1.0, float32)
        for x in xs:
            total = g.add(total, g.load(x, i, j))
        return total

    return g.loop(xs[0].type.shape, body)


def transposed(g: GraphBuilder, x: Value) -> Value:
    return g.loop([N, N], lambda i, j: g.mul(g.load(x, j, i), g.const(3.0, float32)))


def doubled(g: GraphBuilder, x: Value) -> Value:
    return g.extern("double", [x], [Place(0)], [x.type])[0]


def compiled(make: Any, inputs: int = 1, rows: Any = N, donated: bool = False) -> Executable:
    g = GraphBuilder("memory")
    xs = [g.input(f"x{k}", TensorType((rows, N), float32), donated=donated) for k in range(inputs)]
    out = make(g, *xs)
    g.output(*(out if isinstance(out, tuple) else (out,)))
    return compile_graph(g.finish(), Doubling(), machine=GPU)


def arguments(count: int = 1, rows: int = N) -> list[np.ndarray]:
    draw = np.random.default_rng(count)
    return [draw.standard_normal((rows, N)).astype(np.float32) for _ in range(count)]


def homes(exe: Executable) -> list[str]:
    return [exe.plan.place[exe.plan.memory(v)] for v in exe.plan.results]


def test_a_result_lies_where_the_result_of_an_extern_died():
    exe = compiled(lambda g, x: each(g, doubled(g, x)))
    (x,) = arguments()
    np.testing.assert_allclose(exe([x])[0], 2 * x + 1, rtol=1e-6)
    assert homes(exe) == [FOREIGN]
    assert exe.peak_bytes() == SIZE


def test_a_result_lies_where_a_tensor_died_earlier_in_the_same_run_of_kernels():
    """The second kernel reads other elements than it writes, so it cannot write to what it reads."""
    exe = compiled(lambda g, x: transposed(g, each(g, transposed(g, doubled(g, x)))))
    (x,) = arguments()
    np.testing.assert_allclose(exe([x])[0], (2 * x * 3).T.T * 3 + 3, rtol=1e-5)
    assert homes(exe) == [FOREIGN]
    assert exe.peak_bytes() == 2 * SIZE


@pytest.mark.parametrize("name", ["double", "_c10d_functional.all_reduce.default"])
def test_what_a_collective_reads_lives_until_its_result_is_waited_for(name: str):
    """A kernel between them makes a tensor of the same size, which lies where the operand of another extern died."""

    def make(g: GraphBuilder, x: Value) -> Value:
        given = transposed(g, x)
        begun = g.extern(name, [given], [Place(0)], [given.type])[0]
        between = transposed(g, x)
        waited = doubled(g, begun)
        return each(g, transposed(g, between), waited)

    exe = compiled(make)
    (x,) = arguments()
    np.testing.assert_allclose(exe([x])[0], 9 * x + 12 * x.T + 1, rtol=1e-5, atol=1e-5)
    plan = exe.plan
    first, second = (n for n, step in enumerate(plan.steps) if isinstance(step, Extern))
    (given,) = plan.steps[first].reads
    assert plan.lives[plan.root(given)][1] == (first if name == "double" else second)


def test_donated_arguments_are_written_to_and_counted():
    def make(g: GraphBuilder, x: Value, y: Value) -> tuple[Value, ...]:
        return each(g, x, y), doubled(g, y)

    kept, given = compiled(make, 2), compiled(make, 2, donated=True)
    x, y = arguments(2)
    for exe in (kept, given):
        a, b = x.copy(), y.copy()
        first, second = exe([a, b])
        np.testing.assert_allclose(first, x + y + 1, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(second, 2 * y, rtol=1e-6)
        assert (a == x).all() == (exe is kept)
    assert homes(kept)[0] == OUTPUT and homes(given)[0] == INPUT
    assert kept.peak_bytes() == 2 * SIZE
    assert given.peak_bytes() == SIZE  # y is read by the extern, after which it goes


def test_an_argument_that_is_returned_is_not_written_to():
    exe = compiled(lambda g, x: (each(g, x), x), donated=True)
    (x,) = arguments()
    before = x.copy()
    first, second = exe([x])
    assert second is x
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(first, before + 1, rtol=1e-6)


def test_no_memory_with_others_elements_between_is_written_to():
    """The rows of a wider tensor: what lies between them is somebody else's."""
    g = GraphBuilder("memory")
    x = g.input("x", TensorType((N, N), float32, (2 * N, 1)), donated=True)
    g.output(each(g, x))
    exe = compile_graph(g.finish(), Doubling(), machine=GPU)
    memory = np.arange(2.0 * N * N, dtype=np.float32).reshape(N, 2 * N)
    (out,) = exe([memory[:, :N]])
    np.testing.assert_array_equal(memory, np.arange(2.0 * N * N).reshape(N, 2 * N))
    np.testing.assert_allclose(out, memory[:, :N] + 1)


@pytest.mark.parametrize("first", [0, 1])
def test_donated_memory_that_is_not_aligned(monkeypatch: pytest.MonkeyPatch, first: int):
    """Kernels write to its aligned copy; the library must read that, too, and nothing is written back."""
    monkeypatch.setattr(source.Writer, "wants_alignment", lambda w: True)
    g = GraphBuilder("memory")
    x = g.input("x", TensorType((96,), float32), donated=True)
    y = g.loop([96], lambda i: g.add(g.load(x, i), g.const(1.0, float32)))
    g.output(*g.extern("double", [y], [Place(0)], [y.type]), y)

    class Both(Copying, Doubling):
        pass

    exe = compile_graph(g.finish(), Both(), machine=GPU)
    memory = np.arange(100, dtype=np.float32)
    argument = memory[first : first + 96]
    wanted = argument + 1
    double, out = exe([argument])
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(double, 2 * wanted)
    assert homes(exe)[1] == INPUT
    assert first == 0 or memory[1] == 1


@pytest.mark.parametrize("off", ["", "graph-reuse-memory", "graph-cut-arena"])
@pytest.mark.parametrize("rows", [N, sym("s0")])
def test_temporary_tensors_go_when_nobody_needs_them(
    monkeypatch: pytest.MonkeyPatch, rows: Any, off: str
):
    """Temporary tensors in front of an extern and behind it: one arena would hold those of both."""
    monkeypatch.setenv("TESSERA_DISABLE", off)

    def make(g: GraphBuilder, x: Value) -> Value:
        def sums(x: Value) -> Value:
            return g.loop([N], lambda j: g.reduce("sum", [rows], lambda i: g.load(x, i, j)))

        def less(x: Value, s: Value) -> Value:
            return g.loop([rows, N], lambda i, j: g.sub(g.load(x, i, j), g.load(s, j)))

        a = each(g, x)
        b = less(a, sums(a))
        c = doubled(g, b)
        d = each(g, c, c)
        return less(d, sums(d))

    exe = compiled(make, rows=rows)
    for n in (N,) if rows == N else (N, 7, 1):
        (x,) = arguments(rows=n)
        for _ in range(2):
            a = x + 1
            c = 2 * (a - a.sum(0))
            d = 2 * c + 1
            np.testing.assert_allclose(exe([x])[0], d - d.sum(0), rtol=1e-3, atol=1e-2)
    sizes = {} if rows == N else {"s0": N}
    most = 3 if off else 2
    assert (most - 1) * SIZE < exe.peak_bytes(sizes) <= most * SIZE + 2048


def chain(g: GraphBuilder, x: Value) -> Value:
    """Kernels that follow each other, each of which reads other elements than it writes: what the first ones make is
    larger than what the last one does, and dead by then."""
    wide = g.loop([N, N, 4], lambda i, j, k: g.load(x, j, i))
    most = g.loop([N, N], lambda i, j: g.reduce("max", [4], lambda k: g.load(wide, j, i, k)))
    flat = g.loop([N], lambda i: g.reduce("max", [N], lambda j: g.load(most, j, i)))
    return g.loop([N, N, 3], lambda i, j, k: g.load(flat, j))


@pytest.mark.parametrize("off", ["", "graph-break-launches"])
def test_launches_are_started_apart_where_that_holds_less(
    monkeypatch: pytest.MonkeyPatch, off: str
):
    """The result is taken when the large temporary tensor has gone; with one call of native code both are held."""
    monkeypatch.setenv("TESSERA_DISABLE", ",".join([off, "graph-fuse-rows", "graph-inline-loops"]))
    exe = compiled(chain)
    (x,) = arguments()
    for _ in range(2):
        wanted = np.broadcast_to(x.max(0)[None, :, None], (N, N, 3))
        np.testing.assert_array_equal(exe([x])[0], wanted)
    calls = exe.source.count("= launch_")
    if off:
        assert calls == 1 and not exe.plan.breaks
        assert exe.peak_bytes() >= 8 * SIZE
    else:
        assert calls == 2 and len(exe.plan.breaks) == 1
        assert exe.peak_bytes() < 6 * SIZE


def gradients(g: GraphBuilder, x: Value) -> tuple[Value, ...]:
    """A large tensor that a call of the library reads, and then a kernel; what is made of that goes through kernels."""
    wide = g.loop([N, N, 8], lambda i, j, k: g.load(x, j, i))
    weight = g.extern("double", [wide], [Place(0)], [TensorType((N, N, 8), float32)])[0]
    less = g.loop([N, N], lambda i, j: g.reduce("max", [8], lambda k: g.load(wide, j, i, k)))
    more = g.loop([N, N, 2], lambda i, j, k: g.load(less, j, i))
    last = g.extern("double", [more], [Place(0)], [more.type])[0]
    return weight, last


def test_launches_are_started_apart_where_an_arena_would_hold_more():
    """In one call of native code three temporary tensors share an arena, which is held while the library runs in front
    of it."""
    exe = compiled(gradients)
    (x,) = arguments()
    weight, last = exe([x])
    np.testing.assert_array_equal(weight, np.broadcast_to(2 * x.T[:, :, None], (N, N, 8)))
    np.testing.assert_array_equal(last, np.broadcast_to(2 * x.T[:, :, None], (N, N, 2)))
    assert exe.plan.breaks
    assert exe.peak_bytes() <= 17 * SIZE * (1 + LEAST)


def gradients_and_a_chain(g: GraphBuilder, x: Value) -> tuple[Value, ...]:
    """Both, apart by a call of the library."""
    weight, last = gradients(g, x)
    y = doubled(g, g.loop([N, N], lambda i, j: g.load(last, i, j, 0)))
    wide = g.loop([N, N, 6], lambda i, j, k: g.load(y, j, i))
    most = g.loop([N, N], lambda i, j: g.reduce("max", [6], lambda k: g.load(wide, j, i, k)))
    flat = g.loop([N], lambda i: g.reduce("max", [N], lambda j: g.load(most, j, i)))
    return weight, last, g.loop([N, N, 5], lambda i, j, k: g.load(flat, j))


def test_launches_are_started_apart_for_arenas_beside_other_reasons(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("TESSERA_DISABLE", "graph-fuse-rows,graph-inline-loops")
    exe = compiled(gradients_and_a_chain)
    (x,) = arguments()
    wanted = np.broadcast_to(4 * x.max(1)[None, :, None], (N, N, 5))
    np.testing.assert_array_equal(exe([x])[2], wanted)
    assert len(exe.plan.breaks) > 2
    assert exe.peak_bytes() <= 17 * SIZE * (1 + LEAST)


@pytest.mark.parametrize("seed", range(8))
def test_a_few_breaks_hold_hardly_more_than_one_at_each_step(seed: int):
    draw = random.Random(seed)
    leases = [Lease(b.first, b.last, b.size, draw.random() < 0.5) for b in some_buffers(seed, 40)]
    steps = max(x.last for x in leases) + 1
    found = choose(leases, [range(steps)], leases)
    held = Held(leases, steps)
    starts = sorted({0, *found})
    groups = [range(a, b) for a, b in zip(starts, [*starts[1:], steps], strict=True)]
    least = max(held.at(range(n, n + 1)) for n in range(steps))
    assert least <= max(map(held.at, groups)) <= least * (1 + LEAST)
    assert len(found) < steps // 2


def test_many_steps_are_cut_soon():
    """Each step but the last of a group holds less than those behind it: so each cut takes off one step."""
    steps = 1500
    leases = [Lease(n, n, 100 + n, bool(n % 2)) for n in range(steps)]
    began = time.process_time()
    found = choose(leases, [range(steps)], leases)
    assert time.process_time() - began < 20
    assert len(found) > steps // 4


@pytest.mark.parametrize("seed", range(8))
def test_what_groups_hold_is_the_sum_of_what_their_steps_need(seed: int):
    draw = random.Random(seed)
    steps = 30
    leases: list[Lease] = []
    for b in some_buffers(seed, 40):
        first, last = min(b.first, steps - 1), min(b.last, steps - 1)
        kind = draw.randrange(3)
        leases.append(
            Lease(first, last if kind else steps, -b.size if kind == 1 else b.size, kind == 2)
        )
    held = Held(leases, steps)
    for first, stop in ((a, b) for b in range(1, steps + 1) for a in range(b)):
        group, arena = range(first, stop), [x for x in leases if x.placed]
        others = (Allocation(x.first, x.last, x.bytes) for x in leases if not x.placed)
        most = max(sum(x.bytes for x in arena if x.first <= n <= x.last) for n in group)
        assert held.at(group) == sum(x.at(group) for x in others) + most


def test_launches_stay_together_where_apart_they_hold_as_much():
    assert choose([Lease(0, 3, 100), Lease(1, 2, 50)], [range(4)], []) == frozenset()
