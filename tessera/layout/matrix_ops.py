"""Does linear algebra over GF(2) on integers: a matrix is the tuple of its columns, a vector is an int.

Bit `i` of an int is component `i` of the vector, addition is XOR.  The map with columns `(c0, c1, c2)` sends the
vector `0b101` to `c0 ^ c2`.  All spaces here have fewer than 32 dimensions, so every operation is a few dozen
integer instructions and no array library is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Columns", "LayoutError", "apply", "images", "parity"]

Columns = tuple[int, ...]


class LayoutError(ValueError):
    """The operands do not allow a layout operation."""


def apply(columns: Sequence[int], vector: int) -> int:
    """Return the image of `vector`: the XOR of the columns whose bit is set in it."""
    image = 0
    while vector:
        low = vector & -vector
        image ^= columns[low.bit_length() - 1]
        vector ^= low
    return image


def images(columns: Iterable[int]) -> list[int]:
    """Return the images of all vectors 0, 1, 2, ... in order (length 2**len(columns))."""
    result = [0]
    for column in columns:
        result += [value ^ column for value in result]
    return result


def compose(outer: Sequence[int], inner: Iterable[int]) -> Columns:
    """Return the columns of `outer` after `inner`."""
    return tuple([apply(outer, column) for column in inner])


def transpose(columns: Sequence[int], rows: int) -> Columns:
    """Return row masks: bit `j` of result `i` is bit `i` of column `j`."""
    return tuple([sum(((c >> i) & 1) << j for j, c in enumerate(columns)) for i in range(rows)])


def union(columns: Iterable[int]) -> int:
    """Return all bits that any of the columns sets."""
    result = 0
    for column in columns:
        result |= column
    return result


def parity(value: int) -> int:
    """Return 1 if `value` has an odd number of set bits, else 0."""
    return value.bit_count() & 1


def log2(value: int) -> int:
    """Return the exponent of a positive power of two; raise LayoutError for anything else."""
    if value <= 0 or value & (value - 1):
        raise LayoutError(f"{value} is not a power of two")
    return value.bit_length() - 1


class Echelon:
    """A growing set of vectors kept in echelon form, with the combination that made each row.

    Vectors are numbered in the order of insertion.  Only vectors that are independent of the earlier ones become
    part of the basis, so a solution names the *earliest* vectors that can produce it: insert the preferred ones first.
    """

    __slots__ = ("_count", "_rows", "dependent", "independent")

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._rows: dict[int, tuple[int, int]] = {}
        self._count = 0
        self.independent: list[int] = []
        self.dependent: list[tuple[int, int]] = []
        """(number of the vector, combination including itself that sums to zero)"""
        for vector in vectors:
            self.add(vector)

    @property
    def rank(self) -> int:
        return len(self._rows)

    def _reduce(self, vector: int) -> tuple[int, int]:
        combination = 0
        rows = self._rows
        while vector:
            row = rows.get(vector.bit_length())
            if row is None:
                break
            vector ^= row[0]
            combination ^= row[1]
        return vector, combination

    def add(self, vector: int) -> bool:
        """Insert a vector; True if it is independent of those before it."""
        rest, combination = self._reduce(vector)
        number = self._count
        self._count = number + 1
        combination ^= 1 << number
        if rest == 0:
            self.dependent.append((number, combination))
            return False
        self._rows[rest.bit_length()] = (rest, combination)
        self.independent.append(number)
        return True

    def contains(self, vector: int) -> bool:
        return self._reduce(vector)[0] == 0

    def solve(self, vector: int) -> int | None:
        """Return a combination (bit mask of vector numbers) of independent vectors with the sum `vector`, or None."""
        rest, combination = self._reduce(vector)
        return combination if rest == 0 else None

    def kernel(self) -> list[int]:
        """Return a basis of the combinations that sum to zero."""
        return [combination for _, combination in self.dependent]


def invert(columns: Sequence[int]) -> Columns:
    """Return the columns of the inverse of a square invertible map; raise LayoutError if there is none."""
    echelon = Echelon(columns)
    size = len(columns)
    if echelon.rank != size or any(column >> size for column in columns):
        raise LayoutError("the map is not invertible")
    result: list[int] = []
    for i in range(size):
        solution = echelon.solve(1 << i)
        assert solution is not None
        result.append(solution)
    return tuple(result)


def intersection(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return a basis of the intersection of two spans; vectors of `first` itself come first if they qualify."""
    spanned = Echelon(second)
    found = Echelon()
    basis = [v for v in first if v and spanned.contains(v) and found.add(v)]
    both = Echelon([*first, *second])
    mask = (1 << len(first)) - 1
    for combination in both.kernel():
        vector = apply(first, combination & mask)
        if vector and found.add(vector):
            basis.append(vector)
    return basis


def extend(basis: Sequence[int], candidates: Iterable[int]) -> list[int]:
    """Return those candidates, in order, that are independent of `basis` and of each other."""
    echelon = Echelon(basis)
    return [v for v in candidates if v and echelon.add(v)]
