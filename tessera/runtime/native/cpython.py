"""Declares the parts of CPython that native code uses: the layouts of its objects and functions of its C interface.

References are new where the C interface's are; a function typed `Object | None` returns None if it has raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from tessera.backends.llvm.subset import Pointer, Struct, external, f64, i8, i32, i64, u64

# The last fields of `object` are its reference count and type; free-threaded builds have more before them.
BEFORE_TYPE = object.__basicsize__ - 8
BEFORE_ITEMS = tuple.__basicsize__ - object.__basicsize__ - 8  # Python 3.14 keeps a hash there
TUPLE_FLAG = 1 << 26  # Py_TPFLAGS_TUPLE_SUBCLASS


class Object(Struct):
    """PyObject."""

    head: Annotated[Pointer[i8], BEFORE_TYPE]
    type: Object


class Sized(Object):
    """PyVarObject."""

    size: i64


class Tuple(Sized):
    before: Annotated[Pointer[i8], BEFORE_ITEMS]
    items: Annotated[Pointer[Object], 0]


class List(Sized):
    items: Pointer[Object]


class Constexpr(Object):
    """A `tl.constexpr`, whose only slot holds its value."""

    value: Object


class NumpyArray(Object):
    """NumPy's PyArrayObject_fields, which every extension module is compiled against."""

    data: i64
    rank: i32
    extents: Pointer[i64]
    strides: Pointer[i64]
    base: Object | None
    dtype: i64
    flags: i32


Method = Callable[[Object, object], Object | None]  # of no arguments, or the getter of an attribute


@external
def PyLong_AsLongLong(x: Object) -> i64: ...
@external
def PyLong_AsLongLongAndOverflow(x: Object, overflow: Pointer[i32]) -> i64: ...
@external
def PyLong_AsUnsignedLongLong(x: Object) -> u64: ...
@external
def PyLong_AsVoidPtr(x: Object) -> i64: ...
@external
def PyLong_FromLong(x: i64) -> Object | None: ...
@external
def PyLong_FromVoidPtr(x: i64) -> Object | None: ...
@external
def PyNumber_Index(x: Object) -> Object | None: ...
@external
def PyFloat_AsDouble(x: Object) -> f64: ...
@external
def PyFloat_FromDouble(x: f64) -> Object | None: ...
@external
def PyFloat_Pack2(x: f64, to: object, little: i32) -> i32: ...
@external
def PyBool_FromLong(x: i64) -> Object | None: ...
@external
def PyObject_IsTrue(x: Object) -> i32: ...
@external
def PyObject_GetAttr(x: Object, name: Object) -> Object | None: ...
@external
def PyObject_Vectorcall(
    f: Object, args: Pointer[Object], count: i64, names: Object | None
) -> Object | None: ...
@external
def PyObject_VectorcallMethod(
    name: Object, args: Pointer[Object], count: i64, names: Object | None
) -> Object | None: ...
@external
def PyCallable_Check(x: Object) -> i32: ...
@external
def PyType_GetFlags(kind: Object) -> i64: ...
@external
def PyType_IsSubtype(kind: Object, other: Object) -> i32: ...
@external
def PyBytes_AsString(x: Object) -> object: ...
@external
def PyBytes_FromStringAndSize(data: object, size: i64) -> Object | None: ...
@external
def PyTuple_Size(x: Object) -> i64: ...
@external
def PyUnicode_InternInPlace(x: Pointer[Object]) -> None: ...
@external
def PyDict_New() -> Object | None: ...
@external
def PyDict_SetItem(d: Object, key: Object, value: Object) -> i32: ...
@external
def PyDict_GetItemWithError(d: Object, key: Object) -> Object | None:
    """Return a borrowed reference."""
    ...


@external
def PyCell_Get(x: Object) -> Object | None: ...
@external
def Py_IncRef(x: Object) -> None: ...
@external
def Py_DecRef(x: Object | None) -> None: ...
@external
def PyErr_Occurred() -> Object | None:
    """Return a borrowed reference."""
    ...


@external
def PyErr_Clear() -> None: ...
@external
def PyErr_Format(kind: Object, text: bytes, *values: object) -> Object | None: ...
@external
def PyEval_SaveThread() -> object: ...
@external
def PyEval_RestoreThread(state: object) -> None: ...
@external
def memcmp(a: object, b: object, size: i64) -> i32: ...
