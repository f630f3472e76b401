"""`lower_kernel` lowers a jitted function for the types of its arguments to a verified module of tile IR.

Parameters become IR arguments in order: tuples element by element, a tensor descriptor as base pointer, extents (int32)
and strides (int64). Compile-time parameters and specialised values become constants, not arguments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tessera.dtypes import block_type, int32, int64, parse_scalar_type, pointer_type
from tessera.errors import CompilationError
from tessera.frontend.causes import add_causes
from tessera.frontend.frontend import Frame, FrontEnd
from tessera.ir import Block, Module, Value, verify
from tessera.ir.types import ElementType
from tessera.language.callable import JITCallable
from tessera.language.descriptor import tensor_descriptor, tensor_descriptor_type
from tessera.language.values import constexpr, wrap
from tessera.language.values import tuple as tl_tuple
from tessera.ops import FuncOp, MakeDescriptorOp, ReturnOp
from tessera.ops.trace import LINES_MODE

Path = tuple[int, ...]
Key = TypeVar(
    "Key", str, int, Path, str | int | Path
)  # a parameter by its name or position, or an element of a tuple
ArgAttrs = tuple[tuple[str, object], ...]

_DESCRIPTOR = re.compile(r"tensordesc<([\w*]+)\[([\d,\s]*)\](?:,\s*(\w+))?>")
_RECURSION = 8_000  # Python frames: a statement in inlined code takes about ten per call


def lower_kernel(
    fn: JITCallable,
    signature: Mapping[str, object],
    constants: Mapping[Key, object],
    attrs: Mapping[Key, Sequence[Sequence[object]]],
    options: Any,
    name: str | None = None,
) -> Module:
    """Lower `fn` for arguments of these types; the module has one kernel, verified but not canonicalised.

    `signature`: parameter → type string, "constexpr", or a tuple of these. `constants`: parameter name or index path →
    value. `attrs`: path → [["tt.divisibility", 16], …]. `options`: the launch options. `name`: symbol of the kernel.
    Raises CompilationError with the location in the kernel's source.
    """
    fe = FrontEnd(_module(options), options, options.instrumentation_mode == LINES_MODE)
    _lower(fe, fn, signature, _Arguments(fn, constants, attrs), name or fn.__name__)
    if fe.stops and not fe.marks_lines:  # a debugger goes on line by line from `breakpoint()`
        fe = FrontEnd(_module(options), options, marks_lines=True)
        _lower(fe, fn, signature, _Arguments(fn, constants, attrs), name or fn.__name__)
    return fe.module


def _module(options: Any) -> Module:
    return Module(
        num_warps=options.num_warps,
        num_ctas=options.num_ctas,
        num_stages=options.num_stages,
        target=target_text(options.target),
    )


def _lower(
    fe: FrontEnd, fn: JITCallable, signature: Mapping[str, object], arguments: _Arguments, name: str
) -> None:  # fmt: skip
    body = arguments.block
    fe.builder.block = body
    names: dict[str, object] = {}
    for i, param in enumerate(fn.params):
        if param.name not in signature:
            raise CompilationError(
                f"the signature has no type for the parameter {param.name!r}",
                help='give it one, such as "*fp32" or "i32"; a value known at compile time has the type "constexpr"',
            )
        names[param.name] = arguments.make(fe, signature[param.name], (i,), param.name)
    fe.frame = Frame(fn, names, None, None)
    if sys.getrecursionlimit() < _RECURSION:  # not restored: another thread may be lowering, too
        sys.setrecursionlimit(_RECURSION)
    try:
        fe.run(fe.frame.source.node.body)
    except CompilationError as error:
        add_causes(error)
        raise
    fe.builder.insert(ReturnOp(()))
    kernel = FuncOp(
        name=name, kernel=True, arg_attrs=tuple(arguments.attrs), regions=(body,),
        loc=fe.loc(fe.frame.source.node),
    )  # fmt: skip
    fe.module.body.append(kernel)
    verify(fe.module)


def target_text(target: object) -> str:
    """Return the target as the module names it: `cuda:90`, `cpu:avx512`."""
    backend = getattr(target, "backend", None)
    return f"{backend}:{getattr(target, 'arch', None)}" if backend is not None else str(target)


class _Arguments:
    """Makes the kernel's block arguments and the language values of its parameters."""

    def __init__(
        self,
        fn: JITCallable,
        constants: Mapping[Key, object],
        attrs: Mapping[Key, Sequence[Sequence[object]]],
    ):
        self.positions = {p.name: i for i, p in enumerate(fn.params)}
        self.constants = {self._path(k): v for k, v in constants.items()}
        self.facts = {self._path(k): v for k, v in attrs.items()}
        self.block = Block()
        self.attrs: list[ArgAttrs] = []

    def _path(self, key: Key) -> Path:
        if isinstance(key, str):
            return (self.positions[key],)
        return (key,) if isinstance(key, int) else tuple(key)

    def make(self, fe: FrontEnd, kind: Any, path: Path, name: str) -> object:
        """Return the value of the parameter (or tuple element) at `path`."""
        if path in self.constants and not isinstance(kind, (tuple, list)):
            return wrap(constexpr(self.constants[path]))
        if isinstance(kind, (tuple, list)):
            return self._tuple(fe, kind, path, name)  # pyright: ignore[reportUnknownArgumentType]
        if kind == "constexpr":
            raise CompilationError(
                f"the compile-time parameter {name!r} has no value",
                help=f'give it in `constexprs={{"{name}": ...}}`, or a type in the signature, such as "*fp32" or "i32"',
            )
        match = _DESCRIPTOR.fullmatch(kind)
        if match is not None:
            return self._descriptor(fe, match, path, name)
        try:
            t = parse_scalar_type(kind)
        except ValueError as error:
            raise CompilationError(
                f"parameter {name!r}: {error}",
                help='types are written "*fp32" (a pointer), "fp32", "i32", "u8", "i1", "bf16"',
            ) from error
        return fe.tensor(self._arg(t, name, self._attributes(path)))

    def _arg(self, t: ElementType, name: str, attrs: ArgAttrs = ()) -> Value:
        self.attrs.append(attrs)
        return self.block.add_arg(t, name)

    def _attributes(self, path: Path) -> ArgAttrs:
        return tuple((str(k).removeprefix("tt."), v) for k, v in self.facts.get(path, ()))

    def _tuple(self, fe: FrontEnd, kinds: Sequence[object], path: Path, name: str) -> tl_tuple:
        whole = self.constants.get(path)
        if whole is not None:  # a constant given for the tuple as a whole
            return tl_tuple(whole)
        values = [self.make(fe, k, (*path, i), f"{name}_{i}") for i, k in enumerate(kinds)]
        return tl_tuple(values, cls=type(kinds) if hasattr(kinds, "_fields") else None)

    def _descriptor(
        self, fe: FrontEnd, match: re.Match[str], path: Path, name: str
    ) -> tensor_descriptor:
        elem = parse_scalar_type(match.group(1))
        dims = tuple(int(n) for n in match.group(2).split(","))
        base = self._arg(pointer_type(elem), name, (("divisibility", 16),))
        shape = [self._arg(int32, f"{name}_shape_{i}") for i in range(len(dims))]
        attributes = dict(self._attributes(path))
        padding = attributes.get("padding", match.group(3) or "zero")
        kind = tensor_descriptor_type(block_type(elem, dims), bool(attributes.get("rounds")))
        strides = [self._arg(int64, f"{name}_stride_{i}") for i in range(len(dims))]
        op = MakeDescriptorOp(base, shape, strides, block_shape=dims, padding=padding)
        handle = fe.builder.emit(op)
        handle.name = f"{name}_desc"
        return tensor_descriptor(
            fe.tensor(base), [fe.tensor(v) for v in shape], [fe.tensor(v) for v in strides],
            kind, padding == "nan", handle,
        )  # fmt: skip
