"""Functions that leave loops by break, continue and return, which a kernel and Python must compute alike."""

from typing import Any

from tessera.language.callable import JITCallable as jit

FUNCTIONS: list[Any] = []


def same_as_python(f: Any) -> Any:
    FUNCTIONS.append(jit(f))
    return FUNCTIONS[-1]


@same_as_python
def break_out(n):
    s = 0
    for i in range(20):
        if i * i > n:
            break
        s += i
    return s


@same_as_python
def continue_with_the_next(n):
    s = 0
    for i in range(12):
        if i & 1 == 0:
            continue
        s += i * n
    return s


@same_as_python
def return_from_a_loop(n):
    for i in range(10):
        if i * 3 > n:
            return i
    return -1


@same_as_python
def return_from_nested_loops(n):
    s = 0
    for i in range(6):
        for j in range(i):
            if i * j > n:
                return s * 100 + i * 10 + j
            if j > 3:
                break
            s += j
        else_value = s + 1
        s = else_value
    return -s


@same_as_python
def while_true(n):
    i = 0
    while True:
        i += 3
        if i > n:
            break
    return i


@same_as_python
def condition_is_not_evaluated_after_break(n):
    steps = 0
    x = n + 40
    while (x := x - 7) > 0:
        steps += 1
        if x < n:
            break
    return steps * 100 + x


@same_as_python
def every_path_jumps(n):
    s = 0
    for i in range(9):
        if i > n:
            if i > 5:
                s += 100
                break
            s += 10
            continue
        if i == 2:
            continue
        s += 1
        continue
        s += 1000
    return s


@same_as_python
def jump_deep_inside(n):
    s = 0
    for i in range(8):
        if i > 1:
            if i > n:
                break
            s += 1
            if i == 4:
                continue
            s += 2
        t = i * 2
        s += t
    return s


@same_as_python
def temporary_of_two_types(n):
    s = 0
    for i in range(8):
        if i > n:
            t = 1.5
            break
        t = i
        s += t
    return s


@same_as_python
def downwards(n):
    last = 99
    for i in range(12, -12, -5):
        if i < n:
            break
        last = i
    return last


@same_as_python
def several_returning_loops(n):
    for i in range(n):
        if i == 4:
            return 44
    s = 1
    while s < 40:
        s = s * 3
        if s == n + 4:
            return s + 1000
    for i in range(3):
        if i + n < 0:
            return s - i
        s += i
    return s


@same_as_python
def return_from_a_loop_in_a_branch(n):
    if n > 2:
        for i in range(n):
            if i * i > n:
                return i
        n = n + 1
    return n * 10


@same_as_python
def code_after_a_jump_is_dead(n):
    s = 0
    for i in range(5):
        s += i
        if n > 3:
            break
            s += 1000
        continue
        s += 100000
    return s
