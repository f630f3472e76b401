"""`break`, `continue` and `return` inside loops, against Python: written cases, and random programs of nested loops."""

import linecache
import random
from typing import Any

import numpy as np
import pytest

import tessera.language as tl
from tessera import interp
from tessera.errors import UnknownName
from tessera.frontend import lower_kernel
from tessera.language.callable import JITCallable as jit
from tests.errors.kernel_source import OPTIONS
from tests.unit.jumping_functions import FUNCTIONS
from tests.unit.structured_functions import NUMBERS, run


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_same_as_python(f: Any):
    assert [run(f, n) for n in NUMBERS] == [f.fn(n) for n in NUMBERS]


# --- unrolled loops -----------------------------------------------------------------------------------------
@jit
def unrolled(n, LAST: tl.constexpr):
    s = 0
    for i in tl.static_range(6):
        if i == LAST:  # at compile time
            break
        if i == 1:
            continue
        if i * 2 > n:  # at run time
            break
        if n == 3:
            continue
        s += i + 10
    return s


@jit
def first_larger(n, STOP: tl.constexpr):
    for i in tl.static_range(4):
        if i == STOP:
            return 50
        if i * 2 > n:
            return i
    return -1


def host_unrolled(n: int, last: int) -> int:
    s = 0
    for i in range(6):
        if i == last or (i != 1 and i * 2 > n):
            break
        if i == 1 or n == 3:
            continue
        s += i + 10
    return s


def host_first_larger(n: int, stop: int) -> int:
    for i in range(4):
        if i == stop:
            return 50
        if i * 2 > n:
            return i
    return -1


@jit
def store_results(p, n, C: tl.constexpr):
    tl.store(p, unrolled(n, C))
    tl.store(p + 1, first_larger(n, C))


@pytest.mark.parametrize("constant", [0, 1, 3, 9])
def test_unrolled_loops(constant: int):
    signature = {"p": "*i32", "n": "i32", "C": "constexpr"}
    module = lower_kernel(store_results, signature, {"C": constant}, {}, OPTIONS)
    for n in NUMBERS:
        out = np.zeros(2, np.int32)
        interp.run(module, (1, 1, 1), [out, n])
        assert out.tolist() == [host_unrolled(n, constant), host_first_larger(n, constant)]


def test_static_jump_costs_nothing():
    module = lower_kernel(
        store_results, {"p": "*i32", "n": "i32", "C": "constexpr"}, {"C": 0}, {}, OPTIONS
    )
    assert not [op for op in module.walk() if op.opcode in ("if", "while")]


# --- tiles and kernels --------------------------------------------------------------------------------------
@jit
def leave_kernel(p, q, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    acc = tl.zeros([B], tl.float32)
    for i in range(n):
        x = tl.load(p + i * B + offs)
        if tl.max(x, 0) > 5:
            tl.store(q + offs, acc)
            return
        if tl.min(x, 0) < -1:
            continue
        acc += x
    tl.store(q + offs, -acc)


def test_kernel_returns_from_its_loop():
    module = lower_kernel(
        leave_kernel,
        {"p": "*fp32", "q": "*fp32", "n": "i32", "B": "constexpr"},
        {"B": 4},
        {},
        OPTIONS,
    )
    x = np.arange(24, dtype=np.float32).reshape(6, 4) % 5
    x[1, 2] = -2
    for stop in (None, 0, 4):
        y = x.copy()
        if stop is not None:
            y[stop, 1] = 9
        out = np.zeros(4, np.float32)
        interp.run(module, (1, 1, 1), [y, out, 6])
        rows = [i for i in range(6 if stop is None else stop) if i != 1]
        want = y[rows].sum(0) * (-1 if stop is None else 1)
        np.testing.assert_array_equal(out, want)


@jit
def find(p, n, x):
    for i in range(n):
        v = tl.load(p + i)
        if v == x:
            return i, v * 2
    return n, v_default(x)


@jit
def v_default(x):
    return x * 0


@jit
def find_kernel(p, q, n, x):
    at, v = find(p, n, x)
    tl.store(q, at)
    tl.store(q + 1, v)


def test_tuple_is_returned_from_a_loop():
    module = lower_kernel(
        find_kernel, dict.fromkeys("pq", "*i32") | {"n": "i32", "x": "i32"}, {}, {}, OPTIONS
    )
    data = np.array([4, 7, 9, 7], np.int32)
    for x, want in ((7, [1, 14]), (9, [2, 18]), (5, [4, 0])):
        out = np.zeros(2, np.int32)
        interp.run(module, (1, 1, 1), [data, out, 4, x])
        assert out.tolist() == want


@jit
def name_of_the_body(n):
    for i in range(n):
        if i > 2:
            break
        y = i
    return y


def test_names_of_the_body_are_unknown_after_it():
    with pytest.raises(UnknownName, match="y is not defined"):
        run(name_of_the_body, 3)


# --- random programs ------------------------------------------------------------------------------------------
def program(rng: random.Random) -> str:
    """A function of n with nested loops and jumps; every loop ends."""
    lines = ["def f(n):", "    a = 1", "    b = n"]

    def block(depth: int, indent: str, in_loop: bool) -> None:
        for _ in range(rng.randint(1, 3)):
            pick = rng.random()
            if pick < 0.35 or depth == 0:
                x, y = rng.choice("ab"), rng.choice("abn")
                lines.append(f"{indent}{x} = {y} {rng.choice('+-^')} {rng.randint(0, 9)}")
            elif pick < 0.7:
                jump = (
                    rng.choice(["break", "continue", "return a - b", "return b", ""])
                    if in_loop
                    else ""
                )
                lines.append(
                    f"{indent}if {rng.choice('abn')} & {rng.randint(1, 7)} {rng.choice(['==', '!=', '>'])} 1:"
                )
                block(depth - 1, indent + "    ", in_loop)
                if jump:
                    lines.append(f"{indent}    {jump}")
                if rng.random() < 0.4:
                    lines.append(f"{indent}else:")
                    block(depth - 1, indent + "    ", in_loop)
            elif pick < 0.9:
                lines.append(f"{indent}for i{depth} in range({rng.choice(['3', 'n', 'n - 1'])}):")
                lines.append(f"{indent}    a += i{depth}")
                block(depth - 1, indent + "    ", True)
            else:
                lines.append(f"{indent}b = b & 7")
                lines.append(f"{indent}while b < 12:")
                lines.append(f"{indent}    b = (b & 15) + 1 + (b & 1)")
                block(depth - 1, indent + "    ", False)
                lines.append(f"{indent}    b = (b & 255) | 12")

    block(3, "    ", False)
    return "\n".join([*lines, "    return a * 16 + b", ""])


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int):
    text = program(random.Random(seed))
    file = f"<random program {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {}
    exec(compile(text, file, "exec"), scope)
    f = scope["f"]
    for n in (0, 2, 5):
        want = f(n)
        if abs(want) < 1 << 31:
            assert run(jit(f), n) == want, text
