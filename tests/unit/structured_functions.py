"""Functions of branches and loops that a kernel and Python must compute alike."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera.language as tl
from tessera import interp
from tessera.frontend import lower_kernel
from tessera.language.callable import JITCallable as jit
from tests.errors.kernel_source import OPTIONS

NUMBERS = (-3, -1, 0, 1, 2, 3, 4, 5, 7, 12)


@jit
def store_result(p, n, f: tl.constexpr):
    tl.store(p, f(n))


def run(f: Any, n: int) -> int:
    """f(n) as compiled and interpreted."""
    module = lower_kernel(
        store_result, {"p": "*i32", "n": "i32", "f": "constexpr"}, {"f": f}, {}, OPTIONS
    )
    out = np.full(1, -99, np.int32)
    interp.run(module, (1, 1, 1), [out, n])
    return int(out[0])


FUNCTIONS: list[Any] = []


def same_as_python(f: Callable[..., Any]) -> Any:
    FUNCTIONS.append(jit(f))
    return FUNCTIONS[-1]


@same_as_python
def early_return(n):
    if n > 3:
        return n * 2
    return n - 1


@same_as_python
def several_returns(n):
    x = n + 1
    if n < 0:
        x = -x
        if n < -1:
            return x * 10
        x += 5
    elif n == 4:
        return 44
    elif n > 6:
        y = n * 3
        if y > 30:
            return y
        x = y
    else:
        x = x * 2
    if x > 7:
        return x - 7
    return x


@same_as_python
def return_in_every_branch(n):
    if n > 2:
        if n > 4:
            return 1
        else:
            return 2
    else:
        return 3
    return 4


@same_as_python
def nested_loops(n):
    acc = 0
    for i in range(n):
        for j in range(i, 10, 3):
            if (i + j) & 1 == 0:
                acc += i * j
            else:
                acc -= 1
    return acc


@same_as_python
def downwards(n):
    acc = 1
    for i in range(10, n, -3):
        acc = acc * 3 + i
    return acc


@same_as_python
def variable_of_the_loop_is_assigned(n):
    acc = 0
    for i in range(n):
        i = i * 2
        acc += i
    return acc


@same_as_python
def collatz(n):
    x = n * n + 1
    steps = 0
    while x > 1 and steps < 50:
        if x & 1 == 0:
            x = x >> 1
        else:
            x = 3 * x + 1
        steps += 1
    return steps


@same_as_python
def swap_in_a_loop(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


@same_as_python
def loop_in_a_branch(n):
    x = n
    if n > 2:
        while x < 100:
            x = x * 2
    elif n < 0:
        for i in range(4):
            x -= i
    return x


@same_as_python
def conditional_expressions(n):
    a = n if n > 2 else -n
    b = 1 if a == 3 or (a > 4 and not n < 0) else 2
    c = a if 0 < n <= 4 else b
    return a * 100 + b * 10 + c


@same_as_python
def both_branches_assign_one_value(n):
    x = 7
    y = n * 2
    if n > 3:
        x = y
    else:
        x = y
    return x


@same_as_python
def walrus(n):
    total = 0
    while (total := total + 3) < n:
        total += 1
    return total


@same_as_python
def calls(n):
    a, b = divide(n + 20, 7)
    return a * 10 + b + choose(n)


@jit
def divide(x, y):
    return x // y, x % y


@jit
def choose(x, if_small=1, if_large=2):
    if x > 4:
        return if_large
    return if_small


# Python runs the same functions: what they call must be callable there.
HOST = {"divide": lambda x, y: (x // y, x % y), "choose": lambda x: 2 if x > 4 else 1}


@pytest.fixture
def host_callees() -> Iterator[None]:
    saved = {name: globals()[name] for name in HOST}
    globals().update(HOST)
    yield
    globals().update(saved)
