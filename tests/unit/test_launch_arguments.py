"""What a launch may be given, on each way that a launch can take: NumPy's scalars, arrays that must not change, arrays
without memory, arrays whose elements lie apart. Each launch is repeated, so that native code sees it, too."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false
from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import LaunchError, MissingMemory, ReadOnlyArgument, StridedArgument
from tessera.runtime.arguments import checks as argument_checks
from tessera.runtime.arguments.checks import StridedArgumentWarning
from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.arguments.tensors import TensorWrapper
from tessera.runtime.driver import driver, driver_named
from tessera.runtime.native.array_types import read_array
from tessera.utilities import number

N = 16
TURNS = 4  # by Python, which learns types; by Python, which installs; natively


@pytest.fixture(params=["cpu", "interpreter", "cpu checked", "interpreter checked"])
def way(request: pytest.FixtureRequest) -> Any:
    """Options of a launch."""
    name, _, checked = request.param.partition(" ")
    driver.set_active(name)
    yield {"debug": "check"} if checked else {}
    driver.reset_active()


# --- NumPy's scalars -----------------------------------------------------------------------------------------------
@tessera.jit(do_not_specialize=["fixed"])
def numbers(
    out,
    plain,
    fixed,
    wide: tl.int64,
    half: tl.float16,
    pair,
    BLOCK: tl.constexpr,
    SHAPE: tl.constexpr,
):
    i = tl.arange(0, BLOCK)
    total = plain + fixed + wide + half + pair[0] + SHAPE[1]
    tl.store(out + i, total.to(tl.float32), i < 2)


INTEGERS = [
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
    np.longlong,
    np.bool_,
]
FLOATS = [np.float16, np.float32, np.float64, np.longdouble]
OTHERS = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4]


@pytest.mark.parametrize("value", [0, 1, 2, 16, 100, 2**31, 2**63])
@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS], ids=lambda t: t.__name__)
def test_scalars_are_the_kernel_of_their_value(kind: type, value: int):
    """The same compiled kernel, not an equal one, as for Python's number, whatever the parameter's kind."""
    if not np.can_cast(np.min_scalar_type(value), kind) or (kind is np.bool_ and value > 1):
        pytest.skip("the type has no such value")
    x: Any = kind(value)
    plain = number(x)
    assert type(plain) in (int, float, bool) and plain == value
    out = np.zeros(N, np.float32)
    short = min(value, 100)

    def launch(v: Any, w: Any) -> Any:
        out[:] = 0
        wide = w if kind in INTEGERS else 1
        block = kind(8) if kind in INTEGERS[:-1] else 8
        return numbers[(1,)](out, v, v, wide, w, (w,), BLOCK=block, SHAPE=(3, w))

    small = kind(short)
    expected = launch(plain, number(small))
    want = out.copy()
    for _ in range(TURNS):
        assert launch(x, small) is expected
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("kind", OTHERS, ids=lambda t: t.__name__)
def test_scalars_of_other_packages(kind: Any, monkeypatch: pytest.MonkeyPatch):
    out = np.zeros(N, np.float32)
    plain = number(kind(3))
    expected = numbers[(1,)](out, plain, plain, 1, plain, (plain,), 8, (0, plain))
    want = out.copy()
    for _ in range(TURNS):
        out[:] = 0
        assert (
            numbers[(1,)](out, kind(3), kind(3), 1, kind(3), (kind(3),), 8, (0, kind(3)))
            is expected
        )
        np.testing.assert_array_equal(out, want)
    complete = numbers._launch
    calls: list[Any] = []
    monkeypatch.setattr(numbers, "_launch", lambda *a, **k: (calls.append(a), complete(*a, **k))[1])
    numbers[(1,)](out, kind(3), kind(3), 1, kind(3), (kind(3),), 8, (0, kind(3)))
    assert not calls


def test_scalars_on_every_way(way: dict[str, Any]):
    out = np.zeros(N, np.float32)
    for _ in range(TURNS):
        numbers[(np.int32(1), np.uint8(1))](
            out, np.int64(2), np.uint8(3), np.int8(4), np.float32(0.5), (np.float16(0.25),), np.int16(8),
            (np.bool_(True), np.uint64(7)), num_warps=np.int64(4), **way,
        )  # fmt: skip
        assert out.tolist() == [16.75, 16.75] + [0] * (N - 2)


def test_values_decide_not_only_types():
    """Two scalars of one type that need other kernels; and truth values stay truth values."""
    out = np.zeros(N, np.float32)
    seen: list[Any] = []
    for v in (
        np.int64(1),
        np.int64(2),
        np.int64(16),
        np.int64(2**40),
        np.bool_(True),
        np.float32(2),
    ):
        for _ in range(TURNS):
            kernel = numbers[(1,)](out, v, 0, 0, 0, (0,), 8, (0, 0))
            assert out[0] == (v if v < 65504 else np.inf)  # the sum is fp16
        assert numbers[(1,)](out, number(v), 0, 0, 0, (0,), 8, (0, 0)) is kernel
        seen.append(kernel)
    assert len({id(k) for k in seen}) == len(seen)
    for v in (np.int8(8), np.int64(16)):  # of compile-time parameters, too
        for _ in range(TURNS):
            out[:] = 0
            kernel = numbers[(1,)](out, 3, 0, 0, 0, (0,), v, (0, 0))
        assert kernel is numbers[(1,)](out, 3, 0, 0, 0, (0,), int(v), (0, 0))


@tessera.jit
def where_am_i(out, columns):
    tl.store(out + tl.program_id(0) * columns + tl.program_id(1), tl.num_programs(0))


@pytest.mark.parametrize("grid", [
    (np.int64(3), np.int8(2)), [np.uint16(3), np.int32(2)], np.array([3, 2]), lambda m: (np.int64(3), m["columns"]),
])  # fmt: skip
def test_grids(grid: Any, way: dict[str, Any]):
    out = np.zeros(6, np.int32)
    for _ in range(TURNS):
        out[:] = 0
        where_am_i[grid](out, np.int64(2), **way)
        assert out.tolist() == [3] * 6


def test_extents_of_small_types_do_not_overflow():
    """65536 x 65536 programs are 0 in 32 bits."""
    with pytest.raises(LaunchError, match="at most"):
        driver_extents((np.int64(2**31), 1))
    assert driver_extents((np.int32(65536), np.int32(65536))) == (65536, 65536, 1)
    assert all(type(x) is int for x in driver_extents((np.uint8(2), np.int8(3), np.int64(4))))


def driver_extents(grid: Any) -> tuple[int, int, int]:
    return driver_named("cpu").extents(grid)


@pytest.mark.parametrize(
    "value", [np.complex64(1), np.str_("a"), np.datetime64(1, "s"), np.timedelta64(1, "s")]
)
def test_scalars_that_are_no_numbers(value: Any):
    with pytest.raises(TypeError, match=f"argument of type: {type(value).__name__}"):
        numbers[(1,)](np.zeros(N, np.float32), value, 0, 0, 0, (0,), 8, (0, 0))


# --- arrays that must not change -----------------------------------------------------------------------------------
@tessera.jit
def by_store(x, out, n):
    i = tl.arange(0, 16)
    tl.store(out + i, tl.load(x + i, i < n), i < n)


@tessera.jit
def by_atomic(x, out, n):
    i = tl.arange(0, 16)
    tl.atomic_add(out + i, tl.load(x + i, i < n), i < n)


@tessera.jit
def by_loop(x, out, n):
    p = out
    for k in range(n):
        tl.store(p, tl.load(x + k))
        p += 1


@tessera.jit
def by_while(x, out, n):
    p, k = out, 0
    while k < n:
        tl.store(p, tl.load(x + k))
        p, k = p + 1, k + 1


@tessera.jit
def by_branch(x, out, n):
    p = x
    if n > 3:
        p = out
    tl.store(p + tl.arange(0, 16), 1.0)


@tessera.jit(noinline=True)
def write_there(p, i, value):
    tl.store(p + i, value)
    return p


@tessera.jit
def by_call(x, out, n):
    q = write_there(out, 0, tl.load(x))
    tl.store(q + n - 1, 1.0)


@tessera.jit
def by_integer(x, out, n):
    address = out.to(tl.int64) + 4 * (n - 1)
    tl.store(address.to(tl.pointer_type(tl.float32)), tl.load(x))


@tessera.jit
def by_descriptor(x, out, n):
    block = tl.make_tensor_descriptor(x, [n, 4], [4, 1], [4, 4]).load([0, 0])
    tl.make_tensor_descriptor(out, [n, 4], [4, 1], [4, 4]).store([0, 0], block)


@tessera.jit
def by_block_pointer(x, out, n):
    p = tl.make_block_ptr(out, [n], [1], [0], [16], [0])
    tl.store(tl.advance(p, [0]), tl.load(x + tl.arange(0, 16)), boundary_check=[0])


WRITERS = {
    by_store: [1], by_atomic: [1], by_loop: [1], by_while: [1], by_branch: [0, 1], by_call: [1], by_integer: [1],
    by_descriptor: [1], by_block_pointer: [1],
}  # fmt: skip


class Foreign:
    """An array of a library that speaks DLPack and nothing else, here over a NumPy array."""

    def __init__(self, base: Any, versioned: bool = True) -> None:
        self.base_array, self.versioned = base, versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **about: Any) -> Any:
        if not self.versioned and about:
            raise TypeError("unexpected keyword max_version")
        return self.base_array.__dlpack__(**about)


class Immutable(Foreign):
    """As JAX's: the capsule does not tell."""

    __module__ = "jaxlib.stand_in"


def frozen(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


def read_only_arrays(folder: Path) -> dict[str, Any]:
    x = np.arange(N, dtype=np.float32)
    x.tofile(folder / "data")
    wrapped = TensorWrapper(frozen(x.view(np.int32)), tl.float32)
    return {
        "is read-only": frozen(x), " is read-only": np.memmap(folder / "data", np.float32, "r"),
        "  is read-only": wrapped, "is exported read-only": Foreign(frozen(x)),
        "is immutable, as all arrays of JAX": Immutable(x), "   is read-only": np.frombuffer(x.tobytes(), np.float32),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:make_block_ptr")
@pytest.mark.parametrize("kernel", WRITERS, ids=lambda k: k.__name__)
def test_writes_are_refused_reads_are_not(kernel: Any, way: dict[str, Any], tmp_path: Path):
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    assert kernel[(1,)](x, out, 4, **way).metadata.written == WRITERS[kernel]
    for why, array in read_only_arrays(tmp_path).items():
        message = rf"{kernel.__name__} writes to its parameter `out`, but the [\w ]+ given for it {why.strip()}"
        for _ in range(TURNS):
            with pytest.raises(ReadOnlyArgument, match=message):
                kernel[(1,)](x, array, 4, **way)
            if kernel is not by_branch:
                out[:] = -1
                kernel[(1,)](array, out, 4, **way)
                assert (out != -1).any()
    np.testing.assert_array_equal(x[4:], np.arange(N)[4:])


@tessera.jit
def first_of(pair, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(pair[1] + i, tl.load(pair[0] + i))


@tessera.jit
def copy_described(source, target):
    target.store([0, 0], source.load([0, 0]))


def test_tuples_and_descriptors(way: dict[str, Any]):
    x, out = np.arange(N, dtype=np.float32).reshape(4, 4), np.zeros((4, 4), np.float32)

    def described(a: Any) -> TensorDescriptor:
        return TensorDescriptor(a, [4, 4], [4, 1], [4, 4])

    for _ in range(TURNS):
        first_of[(1,)]((frozen(x), out), N, **way)
        with pytest.raises(ReadOnlyArgument, match=r"parameter `pair\[1\]`"):
            first_of[(1,)]((x, frozen(out)), N, **way)
        copy_described[(1,)](described(frozen(x)), described(out), **way)
        with pytest.raises(ReadOnlyArgument, match="parameter `target`"):
            copy_described[(1,)](described(x), described(frozen(out)), **way)


def test_compiled_kernels_by_themselves():
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    kernel = by_store[(1,)](x, out, 4)
    kernel[(1,)](frozen(x), out, 4)
    with pytest.raises(ReadOnlyArgument, match="parameter `out`"):
        kernel[(1,)](x, frozen(out), 4)


def test_an_array_that_is_locked_later():
    """Native launches look at each array each time."""
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for _ in range(TURNS):
        by_store[(1,)](x, out, 4)
    out.flags.writeable = False
    with pytest.raises(ReadOnlyArgument):
        by_store[(1,)](x, out, 4)
    out.flags.writeable = True
    by_store[(1,)](x, out, 4)


def test_exports_of_the_first_version_of_dlpack(way: dict[str, Any]):
    x, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    for _ in range(TURNS):
        by_store[(1,)](Foreign(x, versioned=False), Foreign(out, versioned=False), 16, **way)
    np.testing.assert_array_equal(out, x)


# --- arrays without memory -----------------------------------------------------------------------------------------
class Fake:
    """A tensor that has a size, but no memory."""

    device, dtype, is_cuda, shape = "cpu", np.dtype("float32"), False, (N,)

    def data_ptr(self) -> int:
        return 0

    def untyped_storage(self) -> Any:
        return SimpleNamespace(nbytes=lambda: 4 * N, data_ptr=lambda: 0)


class Trained:
    """As a torch tensor that requires a gradient: asked for its array interface it raises what `getattr` passes on."""

    device, is_cuda = "cpu", False

    def __init__(self, base: Any) -> None:
        self.array, self.dtype, self.shape = base, base.dtype, base.shape

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> Any:
        return SimpleNamespace(nbytes=lambda: self.array.nbytes, data_ptr=self.data_ptr)

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")


def test_tensors_that_do_not_export_themselves():
    """A launch that writes to them asks them for nothing but their memory."""
    out = Trained(np.zeros(N, np.float32))
    assert argument_checks.why_read_only(out) is None
    assert argument_checks.strided(out) is None
    assert read_array(out)[0] == out.data_ptr()


def test_fake_tensors(way: dict[str, Any]):
    x = np.arange(N, dtype=np.float32)
    for _ in range(TURNS):
        for args, name in (((Fake(), x), "x"), ((x, Fake()), "out")):
            with pytest.raises(
                MissingMemory, match=f"the Fake given for the parameter `{name}` of kernel by_store"
            ):
                by_store[(1,)](*args, 4, **way)
    by_store.warmup(Fake(), Fake(), 4, grid=(1,))  # compiling needs no memory


def test_fake_tensors_of_torch(way: dict[str, Any]):
    torch = pytest.importorskip("torch")
    fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
    x = torch.arange(N, dtype=torch.float32)
    with fake_tensor.FakeTensorMode():
        fake = torch.empty(N)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of reading the address
        for array in (fake, torch.empty(N, device="meta")):
            for _ in range(TURNS):
                with pytest.raises(MissingMemory, match="parameter `out` of kernel by_store"):
                    by_store[(1,)](x, array, 4, **way)


# --- arrays whose elements lie apart -------------------------------------------------------------------------------
@tessera.jit
def rows(x, out, step, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i * step))


MATRIX = np.arange(64, dtype=np.float32).reshape(8, 8)
WITHIN = {
    "every other": (MATRIX.reshape(-1)[::2], 2), "column": (MATRIX[:, 3], 8), "transposed": (MATRIX.T, 8),
    "part of rows": (MATRIX[:, :4], 8), "swapped axes": (np.zeros((2, 3, 5), np.float32).swapaxes(0, 1), 5),
    "repeated rows": (np.broadcast_to(MATRIX[0], (4, 8)), 0),
    "field": (np.zeros(8, [("a", "f4"), ("b", "f4")])["a"], 2),
}  # fmt: skip
BEYOND = {
    "reversed": (MATRIX.reshape(-1)[::-1], -1), "reversed rows": (MATRIX[::-1], -8),
    "repeated": (np.broadcast_to(np.float32(1), (8,)), 0),
    "window": (np.lib.stride_tricks.sliding_window_view(np.arange(8, dtype=np.float32), 4), 1),
}  # fmt: skip
DENSE = {
    "whole": MATRIX, "rows": MATRIX[2:5], "one column": MATRIX[:, :1][:1], "flat": MATRIX.reshape(-1),
    "none": MATRIX[:0, ::2], "single": MATRIX[3:4, 2:3], "end": MATRIX.reshape(-1)[60:], "one row": MATRIX[:1, :4],
    "scalar": np.array(1, np.float32),
}  # fmt: skip


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test gets its own warnings."""
    monkeypatch.setattr(argument_checks, "_warned", {})


@pytest.mark.parametrize("name", [*WITHIN, *BEYOND])
@pytest.mark.parametrize("through", ["array", "wrapper", "dlpack"])
def test_strided_arrays(name: str, through: str, way: dict[str, Any]):
    """With the stride: the launch is what it says. Without: an error where memory would be left or in a checked launch,
    else one warning, whose place is the launch."""
    array, step = (WITHIN | BEYOND)[name]
    out = np.zeros(4, np.float32)
    if through == "wrapper":
        array = TensorWrapper(array, tl.float32)
    if through == "dlpack":
        if "repeated" in name or "window" in name:
            pytest.skip("read-only arrays are not exported by all versions of NumPy")
        if "reversed" in name and (way or driver.active.name == "interpreter"):
            pytest.skip("nothing tells where the memory of such an export begins")
        array = Foreign(array)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(TURNS):
            first = rows[(1,)](array, out, step, 4, **way)
            assert first is not None
    if name in BEYOND or way:
        for _ in range(TURNS):
            with pytest.raises(
                StridedArgument, match=r"parameter `x` of kernel rows has strides \("
            ):
                rows[(1,)](array, out, 3, 4, **way)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(TURNS):
            rows[(1,)](array, out, 3, 1, **way)
    assert "parameter `x` of kernel rows" in str(caught[0].message)
    assert len(caught) == 1 and caught[0].filename == __file__


@pytest.mark.parametrize("name", DENSE)
def test_arrays_in_order_say_nothing(name: str, way: dict[str, Any]):
    out = np.zeros(4, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for array in (DENSE[name], Foreign(DENSE[name]), TensorWrapper(DENSE[name], tl.float32)):
            for _ in range(TURNS):
                by_store[(1,)](array, out, 0, **way)


def test_strided_results(way: dict[str, Any]):
    """Writes too, through tuples and by compile-time strides."""
    x, matrix = np.arange(4, dtype=np.float32), np.zeros((4, 8), np.float32)
    for repeat in range(TURNS):
        if way or repeat:
            with pytest.raises(StridedArgument) if way else warnings.catch_warnings():
                first_of[(1,)]((x, matrix[:, 1]), 4, **way)
        else:
            with pytest.warns(StridedArgumentWarning, match=r"`pair\[1\]`"):
                first_of[(1,)]((x, matrix[:, 1]), 4)
    for stride in (8, np.int64(8), (1, (8,))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            strided_store[(1,)](x, matrix[:, 2], stride, **way)


@tessera.jit
def strided_store(x, out, STRIDES: tl.constexpr):
    i = tl.arange(0, 4)
    tl.store(out + i * 8, tl.load(x + i))


def test_a_negative_stride_that_is_passed(way: dict[str, Any]):
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    for _ in range(TURNS):
        rows[(1,)](x[::-1], out, -1, 8, **way)
        np.testing.assert_array_equal(out, x[::-1])


def test_native_launches_of_explained_strides_stay_native(monkeypatch: pytest.MonkeyPatch):
    out = np.zeros(4, np.float32)
    for _ in range(3):
        rows[(1,)](MATRIX[:, 1], out, 8, 4)
    complete = rows._launch
    calls: list[Any] = []
    monkeypatch.setattr(rows, "_launch", lambda *a, **k: (calls.append(a), complete(*a, **k))[1])
    rows[(1,)](MATRIX[:, 2], out, 8, 4)
    np.testing.assert_array_equal(out, MATRIX[:4, 2])
    assert not calls
