"""Makes graph IR of the ATen operations that AOTAutograd leaves: by a rule where there is one, else as an extern."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tessera.dtypes import int64
from tessera.graph.index import Expr, expr
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import ForeignType, Name, Place
from tessera.graph.passes.layouts import FREE
from tessera.graph.torch.decompose import PLACED, placed
from tessera.graph.torch.devices import Devices
from tessera.graph.torch.eager import SymbolValues
from tessera.graph.torch.layouts import Restrided, first_saved, given_strides, offsets_of
from tessera.graph.torch.lowering import (
    attention,
    bessel,
    convolution,
    create,
    index,
    matmul,
    pointwise,
    pool,
    random,
    reduce,
    search,
    sort,
    special,
    view,
)
from tessera.graph.torch.lowering.base import Float, Lowering, Rule, Tensor, rule_for, whole
from tessera.graph.torch.numbers import Computed, Numbers
from tessera.graph.torch.options import Options
from tessera.graph.torch.origins import origin_of
from tessera.graph.torch.types import (
    WRITE,
    NotLowered,
    Places,
    Size,
    size_of,
    sizes_of,
    tensor_type,
)
from tessera.graph.torch.user_kernels import REASON, UserKernel, is_user_kernel, user_kernel
from tessera.ir import Module, Value
from tessera.ops import arith

_TABLES = (  # imported for the rules that they register
    attention, bessel, convolution, create, index, matmul, pointwise, pool, random, reduce, search, sort, special, view,
)  # fmt: skip
NO_KERNEL = "no kernel of ours"


@dataclass
class Imported:
    """A graph of the IR, and what its externs and arguments are in torch.

    `targets`: functions by an extern's target; `objects`: what `Name`s stand for; `places`: which results of a target
    the graph has, by how many it has. `constants`: tensors that are the last arguments but for `numbers`, floats that
    are computed from sizes. `symbols`: the arguments of the IR that are sizes, by symbol; `sizes`: those that are
    computed from others. `outputs`: for each output of torch's graph the position of the IR's result, or an expression,
    or None; `offsets`: `offsets_of`. `externs`: (operation, reason)."""

    module: Module
    targets: dict[str, Callable[..., Any]] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    places: Places = field(default_factory=dict)
    constants: list[Any] = field(default_factory=list)
    numbers: list[Computed] = field(default_factory=list)
    sizes: dict[str, Computed] = field(default_factory=dict)
    symbols: list[str] = field(default_factory=list)
    outputs: list[int | Expr | None] = field(default_factory=list)
    offsets: dict[int, int | Expr] = field(default_factory=dict)
    externs: list[tuple[str, str]] = field(default_factory=list)
    lowered: list[str] = field(default_factory=list)
    device: str = "cpu"


def import_graph(
    graph: GraphModule,
    options: Options,
    name: str = "graph",
    donated: Collection[str] = (),
    inputs: Sequence[Any] = (),
) -> Imported:
    """The graph as IR. `donated`: the names of placeholders whose memory may be written to when nobody reads them any
    more; `inputs`: what the graph will be given. Raises `NotLowered` where a value is neither a strided tensor nor a
    number of sizes: eager runs the graph as a whole."""
    return _Importer(graph, options, name, donated, inputs).run()


class _Importer:
    def __init__(
        self,
        graph: GraphModule,
        options: Options,
        name: str,
        donated: Collection[str],
        inputs: Sequence[Any],
    ) -> None:
        self.graph, self.options, self.donated = graph, options, donated
        self.purpose, self.given = name, given_strides(name, inputs)
        self.free: tuple[int, ...] | None = None
        self.g = GraphBuilder(name)
        self.restrided = Restrided(self.g)
        self.low = Lowering(self.g, options.random == "eager", options.matmul)
        self.found = Imported(None)  # type: ignore[arg-type]
        self.env: dict[Node, Any] = {}

    def run(self) -> Imported:
        nodes = list(self.graph.graph.nodes)
        self.g.device = self.found.device = self._device(nodes)
        self.devices = Devices(self.g, self.found.device)
        given = [n.meta.get("val") for n in nodes if n.op == "placeholder"]
        self.numbers = Numbers(self.g, SymbolValues(given).sources)
        self.numbers.sizes(nodes)
        self._arguments([n for n in nodes if n.op == "placeholder"])
        self._constants([n for n in nodes if n.op == "get_attr"])
        for node in nodes:
            if node.op == "call_function":
                self.env[node] = self._call(node)
            elif node.op == "output":
                self._outputs(node)
            elif node.op not in ("placeholder", "get_attr"):
                raise NotLowered(f"a node is a {node.op}")
        self.found.numbers, self.found.sizes = self.numbers.computed, self.numbers.computed_sizes
        self.found.module = self.g.finish()
        if self.free is not None:
            self.found.module.attrs[FREE] = self.free
        return self.found

    @staticmethod
    def _device(nodes: Sequence[Node]) -> str:
        """Where the graph's kernels run: on its GPU, if it has one."""
        values = [node.meta.get("val") for node in nodes]
        found = {v.device for v in values if isinstance(v, torch.Tensor)}
        return max((str(d) for d in found if d.type == "cuda"), default="cpu")

    # --- arguments --------------------------------------------------------------------------------------------
    def _arguments(self, nodes: Sequence[Node]) -> None:
        for node, given in zip_longest(nodes, self.given):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self.env[node] = self._argument(node.name, value, given)
            elif _is_number(value):
                self.env[node] = self._number(value)
            elif node.users:
                raise NotLowered(f"an argument is a {type(value).__name__}")
            else:
                self.env[node] = None
        self._symbols(nodes)

    def _argument(self, name: str, fake: torch.Tensor, given: Any = None) -> Tensor:
        if fake.layout != torch.strided or fake.is_quantized:
            raise NotLowered(f"a tensor is {fake.layout}")
        traced = tensor_type(self._fits(fake))
        t = traced if given is None else traced.with_place(tensor_type(self._fits(given)))
        x = self.restrided.argument(self.g.input(name, t, donated=name in self.donated), traced)
        return self._negated(x) if fake.is_neg() else x

    def _negated(self, x: Tensor) -> Tensor:
        """What a tensor holds whose memory has each element with the other sign, as `z.conj().imag` does."""
        made = self.g.loop(x.shape, lambda *i: self.g.b.emit(arith.NegOp(self.g.load(x.value, *i))))
        return replace(whole(made), strides=x.strides, home=x.home)

    def _fits(self, fake: Any) -> Any:
        """The fake tensor, if its sizes are expressions of symbols that the arguments give."""
        sizes_of((*fake.shape, *fake.stride()))
        return fake

    def _number(self, value: Any) -> Size | Float:
        return self.numbers.of(value) if isinstance(value, torch.SymFloat) else size_of(value)

    def _symbols(self, nodes: Sequence[Node]) -> None:
        """Arguments for the symbols that are no size of a tensor argument."""
        used = set(self.numbers.computed_sizes)
        of_tensors: set[str] = set()
        for node in nodes:
            value = self.env[node]
            if isinstance(value, Tensor):
                for e in (*value.shape, *(value.strides or ())):
                    used |= e.syms if isinstance(e, Expr) else set()
                of_tensors |= {str(e) for e in value.shape if isinstance(e, Expr) and e.atom}
            elif isinstance(value, Expr):
                used |= value.syms
        for symbol in sorted(used - of_tensors):
            self.found.symbols.append(symbol)
            self.g.input(symbol, int64, symbol=symbol)

    def _constants(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            held: Any = operator.attrgetter(str(node.target))(self.graph)
            if isinstance(held, torch.Tensor) and self.devices.is_literal(held):
                self.env[node] = self.devices.literal(held)
            elif isinstance(held, torch.Tensor):
                self.env[node] = self._argument(node.name, held)
                self.found.constants.append(held)
            else:
                self.found.objects[node.name] = held
                self.env[node] = Name(node.name)

    # --- operations -------------------------------------------------------------------------------------------
    def _call(self, node: Node) -> Any:
        value = node.meta.get("val")
        if node.target is operator.getitem:
            return self._plain(node.args[0])[node.args[1]]
        if _is_number(value):
            return self._number(value)
        if isinstance(value, (torch.SymBool, float, bool)):
            raise NotLowered(f"{node.target} gives a number")
        if node.target is torch.ops.aten.copy_.default:
            return self._write(node)
        if is_user_kernel(node.target):
            return self._user_kernel(node)
        name, reason = str(node.target), NO_KERNEL
        if name == "inductor.resize_storage_bytes_.default":  # its schema tells of no change
            raise NotLowered("it frees memory of an argument, or takes some for it")
        if name.startswith("auto_functionalized"):  # an operation that changes its arguments
            name, reason = str(node.args[0]), REASON
        elif getattr(node.target, "namespace", "aten") not in ("aten", "prims"):
            reason = REASON
        lower = rule_for(node.target) if self.options.kernels != "none" else None
        if lower is not None:
            try:
                found = self._lower(create.nothing if _is_empty(value) else lower, node)
                self.found.lowered.append(str(node.target))
                return found
            except NotLowered as why:
                reason = str(why)
        self.found.externs.append((name, reason))
        return self._extern(node)

    def _lower(self, lower: Rule, node: Node) -> Any:
        """What the rule makes; all that it emitted is dropped when it gives up."""
        low, last = self.low, self.g.block.last
        low.out, low.node = node.meta["val"], node
        streams, seeds, moved = low.streams, dict(low.seeds), dict(self.devices.moved)
        try:
            args, kwargs = self._plain(node.args), self._plain(node.kwargs)
            self.devices.refuse(low.out, [*args, *kwargs.values()])
            here = self.devices.here
            with self.g.b.located(origin_of(node)):
                found = lower(low, *map(here, args), **{k: here(a) for k, a in kwargs.items()})
        except BaseException:
            low.streams, low.seeds, self.devices.moved = streams, seeds, moved
            while self.g.block.last is not last:
                self.g.block.last.erase()  # type: ignore[union-attr]
            raise
        return self._checked(found, node)

    def _checked(self, found: Any, node: Node) -> Any:
        """The rule's tensors with torch's strides, if they are of the shapes and types that torch says."""
        fakes = node.meta["val"]
        if isinstance(found, Tensor):
            return self._one(found, fakes, node)
        return [self._one(f, fake, node) for f, fake in zip(found, fakes, strict=True)]

    def _one(self, found: Tensor | None, fake: Any, node: Node) -> Tensor | None:
        if found is None:
            return None
        wanted = tensor_type(fake)
        fits = len(found.shape) == len(wanted.shape) and found.elem == wanted.elem
        known = all(
            a == b
            for a, b in zip(found.shape, wanted.shape)
            if isinstance(a, int) and isinstance(b, int)
        )
        assert fits and known, (
            f"{node.target}: {found.value.type.short} {found.shape}, not {wanted.short}"
        )
        home = str(fake.device)
        return Tensor(found.value, found.map, wanted.shape, wanted.all_strides, home)

    def _plain(self, value: Any) -> Any:
        """An argument of torch's node, with what was made of other nodes in their place."""
        if isinstance(value, Node):
            return self.env[value]
        if isinstance(value, (list, tuple)):
            return [self._plain(v) for v in value]
        if isinstance(value, dict):
            return {k: self._plain(v) for k, v in value.items()}
        return value

    # --- externs ------------------------------------------------------------------------------------------------
    def _extern(self, node: Node) -> Any:
        value = self.low.out = node.meta.get("val")  # an assertion has none
        target, run = str(node.target), node.target
        if target in PLACED and isinstance(node.args[0], Node):
            target, run = placed(run, node.args[0].meta["val"])
        self.found.targets[target] = run  # type: ignore[assignment]
        fakes = list(value) if isinstance(value, (list, tuple)) else [value]
        plain = [f is None or _is_number(f) for f in fakes]
        types = [tensor_type(self._strided(f)) for f, p in zip(fakes, plain, strict=True) if not p]
        places = tuple(k for k, p in enumerate(plain) if not p)
        if self.found.places.setdefault((target, len(types)), places) != places:
            self.found.places[target, len(types)] = None
        results = self._called(
            target, node, self._plain(node.args), self._plain(node.kwargs), types
        )
        found = [
            whole(next(results)) if not p else None if f is None else self._number(f)
            for f, p in zip(fakes, plain, strict=True)
        ]
        return found if isinstance(value, (list, tuple)) else found[0]

    def _called(
        self, target: str, node: Node, args: Any, kwargs: Any, types: list[Any]
    ) -> Iterator[Value]:
        operands: list[Value] = []
        arguments = [self._written(a, operands) for a in args]
        keywords = {k: self._written(a, operands) for k, a in kwargs.items()}
        return iter(
            self.g.extern(target, operands, arguments, types, keywords, pure=_is_pure(node))
        )

    def _user_kernel(self, node: Node) -> dict[str, Tensor]:
        """What a kernel of the program writes, by the names of its arguments."""
        run, given = user_kernel(node)
        number = sum(isinstance(t, UserKernel) for t in self.found.targets.values())
        target = f"kernel.{run.name}" + (f".{number}" if number else "")
        self.found.targets[target] = run
        self.found.externs.append((target, REASON))
        made: dict[str, Any] = node.meta["val"]
        types = [tensor_type(self._strided(fake)) for fake in made.values()]
        grids = self._plain(node.kwargs["grid"])
        results = self._called(target, node, [grids], self._plain(given), types)
        return {name: whole(x) for name, x in zip(made, results, strict=True)}

    def _strided(self, fake: Any) -> Any:
        if not isinstance(fake, torch.Tensor):
            raise NotLowered(f"an operation gives a {type(fake).__name__}")
        if fake.layout != torch.strided:
            raise NotLowered(f"a tensor is {fake.layout}")
        return self._fits(fake)

    def _written(self, value: Any, operands: list[Value]) -> Any:
        """An argument as the IR writes it; tensors are counted among the operands."""
        if isinstance(value, Tensor):
            operands.append(self.materialised(value))
            return Place(len(operands) - 1)
        if isinstance(value, Float):
            operands.append(value.value)
            return Place(len(operands) - 1)
        if isinstance(value, (list, tuple)):
            return tuple(self._written(v, operands) for v in value)
        if isinstance(value, dict):
            raise NotLowered("an argument is a dictionary")
        if value is None or isinstance(value, (bool, int, float, str, Expr, Name)):
            return value
        name = str(value)
        self.found.objects[name] = value
        return Name(name)

    def materialised(self, x: Tensor) -> Value:
        """The tensor as a value of the IR, in exactly torch's strides, on the device where torch has it."""
        copy = self.restrided.as_traced(x)
        return copy or self.devices.on(x, x.home or x.device)

    def _write(self, node: Node) -> Any:
        target, source = (self._plain(a) for a in node.args[:2])
        if not isinstance(node.args[0], Node) or node.args[0].op != "placeholder":
            raise NotLowered("a write into what is no argument")
        self.low.out = node.args[0].meta["val"]
        if self.low.out.is_neg():
            raise NotLowered("a write into memory that has the other sign")
        foreign = any(isinstance(x.elem, ForeignType) for x in (target, source))
        if foreign or target.device != self.found.device:
            operands = [target.value, self.materialised(source)]
            self.g.extern(WRITE, operands, [Place(0), Place(1)], [], pure=False)
            return source
        source = self.devices.here(source)
        if source.elem != target.elem or source.shape != target.shape:
            source = pointwise.assigned(self.low, target, source)
        self.g.write(target.value, self.devices.on(source, target.device))
        return source

    def _outputs(self, node: Node) -> None:
        saved = first_saved(self.purpose)
        self.found.offsets = offsets_of(self.purpose, node.args[0])  # type: ignore[arg-type]
        free: list[int] = []
        known: dict[Any, int] = {}  # what is returned twice is one object, as in eager
        for k, value in enumerate(node.args[0]):  # type: ignore[arg-type]
            made = self.env[value] if isinstance(value, Node) else value
            if isinstance(made, Tensor):
                if saved is not None and k >= saved:
                    free.append(len(self.g.results))
                    known.pop(value, None)
                self.found.outputs.append(known.setdefault(value, len(self.g.results)))
                if known[value] == len(self.g.results):
                    self.g.output(self.materialised(made))
            elif isinstance(made, Float):
                self.found.outputs.append(len(self.g.results))
                self.g.output(made.value)
            elif made is None or isinstance(made, (Expr, int)):
                self.found.outputs.append(made if made is None else expr(made))
            else:
                raise NotLowered(f"an output is a {type(made).__name__}")
        self.free = None if saved is None else tuple(free)


def _is_number(value: Any) -> bool:
    """Whether it is a size, or a float that is computed from sizes."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, int)) and not isinstance(value, bool)


def _is_empty(value: Any) -> bool:
    """Whether all tensors are known to have no element."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return all(
        isinstance(x, torch.Tensor) and any(n == 0 for n in x.shape if isinstance(n, int))
        for x in several
    )


def _is_pure(node: Node) -> bool:
    """Whether a call has no effect but its results, which are the same each time."""
    if node.is_impure():
        return False
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not (node.target._schema.is_mutable or random)
