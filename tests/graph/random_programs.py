"""Random programs of torch, as text: views, writes through them, types that meet, scatters, joins and reductions.

A line that eager refuses is left out while a program is drawn, which runs it on the CPU: there a place that does not
exist is an error, and on a GPU the end of the process. Numbers are small multiples of a quarter,
so that most results are exact; what is rounded (`rough`, by storage) is compared with nothing, and not made whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

FLOATS = ("float32", "float32", "float64", "float16", "bfloat16")
INTS = ("int64", "int32", "int16", "int8", "uint8", "bool")
SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0)
MOST = 600  # elements


def forms_of(text: str) -> list[str]:
    """Expressions, from a text with semicolons between them."""
    return text.split("; ")


def numbers(
    random: Random, shape: Sequence[int], dtype: str, special: bool = False
) -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    kind: torch.dtype = getattr(torch, dtype)
    if kind == torch.bool:
        values: list[Any] = [random.random() < 0.5 for _ in range(count)]
    elif kind.is_floating_point or kind.is_complex:
        values = [random.randrange(-8, 9) / 4 for _ in range(count)]
        if special:
            values = [random.choice(SPECIAL) if random.random() < 0.1 else x for x in values]
    else:
        info = torch.iinfo(kind)
        ends = (info.min, info.max)
        low = 0 if info.min == 0 else -9
        values = [
            random.choice(ends) if special and random.random() < 0.1 else random.randrange(low, 10)
            for _ in range(count)
        ]
    return torch.tensor(values, dtype=kind).reshape(tuple(shape))


def laid_out(random: Random, x: torch.Tensor) -> torch.Tensor:
    """The same elements, with other strides, behind an offset or one number for a whole row."""
    way = random.randrange(6)
    if way == 0 and x.dim() > 1:
        order = list(range(x.dim()))
        random.shuffle(order)
        back = [order.index(i) for i in range(x.dim())]
        return x.permute(order).contiguous().permute(back)
    if way == 1 and x.dim():
        wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), dtype=x.dtype)
        part = wide[..., 1::2]
        part.copy_(x)
        return part
    return x


def copied(x: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A copy with its strides, and with what else is in the storage of a slice."""
    span = x.untyped_storage().nbytes() // x.element_size()
    base = x.detach().as_strided((span,), (1,), 0).to(device, copy=True)
    return base.as_strided(x.shape, x.stride(), x.storage_offset()).requires_grad_(x.requires_grad)


class RandomProgram:
    """Arguments and the text of a function of them, drawn from a seed."""

    def __init__(
        self,
        seed: int,
        steps: int,
        *,
        gradients: bool = False,
        special: bool = False,
        changes: bool = True,
    ):
        self.random = random = Random(seed)
        self.gradients, self.special, self.changes = gradients, special, changes
        self.args = [self._argument() for _ in range(random.randrange(1, 4))]
        self.values: dict[str, torch.Tensor] = {}
        self.rough: set[int] = set()
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"torch": torch}
        for i, x in enumerate(self.args):
            self.scope[f"x{i}"] = self.values[f"x{i}"] = copied(x)
        tries = 0
        while len(self.lines) < steps and tries < 6 * steps:
            tries += 1
            self._step()
        names = list(self.values)
        kept = random.sample(names, min(len(names), random.randrange(1, 5)))
        self.results = kept if names[-1] in kept else [*kept, names[-1]]

    @property
    def text(self) -> str:
        names = ", ".join(f"x{i}" for i in range(len(self.args)))
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def program({names}):\n{body}\n    return {', '.join(self.results)},\n"

    def function(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {"torch": torch}
        exec(self.text, scope)
        return scope["program"]

    def memory(self, name: str) -> int:
        return self.values[name].untyped_storage()._cdata

    def is_rough(self, name: str) -> bool:
        return self.memory(name) in self.rough

    # --- what is chosen ----------------------------------------------------------------------------------------------
    def _argument(self) -> torch.Tensor:
        random = self.random
        shape = [
            random.choice((1, 2, 3, 4, 5, 8)) for _ in range(random.choice((0, 1, 1, 2, 2, 2, 3)))
        ]
        if shape and random.random() < 0.05:
            shape[random.randrange(len(shape))] = 0
        dtype = random.choice(FLOATS if self.gradients or random.random() < 0.6 else INTS)
        x = laid_out(random, numbers(random, shape, dtype, self.special))
        return x.requires_grad_(self.gradients)

    def pick(
        self, fits: Callable[[torch.Tensor], bool] = lambda x: True, exact: bool = False
    ) -> str:
        names = [n for n, x in self.values.items() if fits(x) and not (exact and self.is_rough(n))]
        if not names:
            raise LookupError
        return self.random.choice(names[-5:] if self.random.random() < 0.7 else names)

    def axis(self, name: str) -> int:
        rank = self.values[name].dim()
        if not rank:
            raise LookupError
        return self.random.randrange(-rank, rank)

    def constant(self, name: str) -> str:
        x = self.values[name]
        return str(
            self.random.choice((2, -1, 3, 0.5, -0.25) if x.is_floating_point() else (1, 2, -3, 5))
        )

    def bound(self) -> str:
        return self.random.choice(("", "", "1", "2", "-1", "-2", "3"))

    def piece(self, rank: int) -> str:
        """A subscript: slices, whole dimensions, numbers, None, an ellipsis."""
        parts = []
        for _ in range(self.random.randrange(1, rank + 1)):
            way = self.random.randrange(7)
            step = self.random.choice(("", "", "2", "3"))
            parts.append(
                f"{self.bound()}:{self.bound()}:{step}" if way < 4
                else self.random.choice(("0", "-1", ":", "None", "1"))
            )  # fmt: skip
        if self.random.random() < 0.2:
            parts.insert(self.random.randrange(len(parts) + 1), "...")
        return ", ".join(parts)

    # --- steps -------------------------------------------------------------------------------------------------------
    def _step(self) -> None:
        kinds = (self.pointwise, self.pointwise, self.pair, self.pair, self.cast, self.view, self.view, self.view,
                 self.reduction, self.join, self.gathered, self.scattered, self.smooth, self.chosen)  # fmt: skip
        writes = (self.write, self.write, self.put) if self.changes else ()
        name = f"v{len(self.lines)}"
        try:
            line, exact = self.random.choice((*kinds, *writes))()
        except LookupError:
            return
        statement = line.format(new=name)
        try:
            exec(statement, self.scope)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            self.scope.pop(name, None)
            return
        made = self.scope.get(name)
        if made is not None and (made.numel() > MOST or made.is_complex()):
            self.scope.pop(name)
            return
        self.lines.append(statement)
        if made is not None:
            self.values[name] = made
        self._spread(statement, exact)

    def _spread(self, statement: str, exact: bool) -> None:
        """What is made of rounded numbers, or has them written into it, is rounded: its first name."""
        target, *names = re.findall(r"\b[vx]\d+\b", statement)
        if not exact or any(self.is_rough(n) for n in names):
            self.rough.add(self.memory(target))

    def pointwise(self) -> tuple[str, bool]:
        a = self.pick()
        c = self.constant(a)
        forms = forms_of(
            "-{a}; {a}.abs(); {a} * {c}; {a} + {c}; {c} - {a}; {a}.clamp(-1, 1); torch.relu({a}); "
            "{a}.square(); {a}.clone(); torch.zeros_like({a}) + {c}; {a}.sign(); {a}.contiguous()"
        )
        if self.values[a].is_floating_point():
            forms += forms_of(
                "{a} * 0.5; torch.nan_to_num({a}, nan=0.5); {a}.isnan(); {a}.signbit()"
            )
        elif self.values[a].dtype != torch.bool:
            forms += forms_of(
                "{a} // 3; {a} % 3; {a} % -4; {a} >> 1; {a} << 2; ~{a}; {a} ** 3; {a} & 6; {a} / 4"
            )
        else:
            forms += forms_of("~{a}; {a} ^ True; {a}.logical_not(); {a} + 1")
        return "{new} = " + self.random.choice(forms).format(a=a, c=c), True

    def smooth(self) -> tuple[str, bool]:
        a = self.pick(lambda x: x.dim() > 0)
        form = self.random.choice(
            forms_of(
                "torch.sigmoid({a}); torch.tanh({a}); ({a}.float() * 0.1).exp(); {a}.float().softmax({d}); "
                "{a}.float().mean({d}, keepdim=True); torch.sin({a}); torch.nn.functional.gelu({a}.float())"
            )
        )
        return "{new} = " + form.format(a=a, d=self.axis(a)), False

    def pair(self) -> tuple[str, bool]:
        a, b = self.pick(), self.pick()
        forms = forms_of("{a} + {b}; {a} - {b}; {a} * {b}")
        exact = not (self.is_rough(a) or self.is_rough(b))
        if exact:
            forms += forms_of(
                "torch.maximum({a}, {b}); torch.minimum({a}, {b}); {a} < {b}; {a} == {b}; {a} >= {b}; "
                "torch.where({a} > 0, {a}, {b}); torch.logical_xor({a}, {b}); {a} | {b}; "
                "torch.copysign({a}, {b})"
            )
        return "{new} = " + self.random.choice(forms).format(a=a, b=b), True

    def cast(self) -> tuple[str, bool]:
        a = self.pick(exact=True)
        x = self.values[a]
        dtype = self.random.choice((*FLOATS, *INTS))
        if x.is_floating_point() and dtype in INTS and dtype != "bool":
            low = 0 if dtype == "uint8" else -100
            return f"{{new}} = torch.nan_to_num({a}, 1.0).clamp({low}, 100).to(torch.{dtype})", True
        return f"{{new}} = {a}.to(torch.{dtype})", True

    def view(self) -> tuple[str, bool]:
        a = self.pick(lambda x: x.dim() > 0)
        x = self.values[a]
        rank = x.dim()
        order = list(range(rank))
        self.random.shuffle(order)
        forms = forms_of(
            "{a}[{p}]; {a}[{p}]; {a}.transpose({d}, {e}); {a}.permute({o}); {a}.unsqueeze({d}); "
            "{a}.flatten(); {a}.reshape(-1); {a}.squeeze({d}); {a}.narrow({d}, 0, 1); "
            "{a}.unbind({d})[-1]; {a}.flip({d}); {a}.chunk(2, {d})[-1]; {a}.expand(3, {s}); {a}.detach(); "
            "{a}.T; {a}.view({v}); {a}.movedim({d}, {e}); {a}.diagonal(0, {d}, {e}); "
            "{a}.unfold({d}, 2, 1); {a}.roll(1, {d}); {a}.repeat({r}); {a}.view_as({a}); "
            "{a}.select({d}, 0); {a}.split(2, {d})[0]"
        )
        if self.gradients:
            forms.remove("{a}.detach()")
        form = self.random.choice(forms).format(
            a=a, p=self.piece(rank), d=self.axis(a), e=self.axis(a), o=", ".join(map(str, order)),
            s=", ".join(["-1"] * rank), v=self._factors(x.numel()), r=", ".join(["2"] + ["1"] * (rank - 1)),
        )  # fmt: skip
        return "{new} = " + form, True

    def _factors(self, n: int) -> str:
        for k in (2, 3, 4):
            if n % k == 0 and self.random.random() < 0.6:
                return f"{k}, -1" if n else "0, 2"
        return "-1, 1" if n else "0, 1"

    def reduction(self) -> tuple[str, bool]:
        a = self.pick()
        x = self.values[a]
        dims = (
            sorted(self.random.sample(range(x.dim()), self.random.randrange(1, x.dim() + 1)))
            if x.dim()
            else []
        )
        keep = self.random.choice((True, False))
        forms = forms_of("{a}.sum({d}, keepdim={k}); {a}.sum(); {a}.cumsum({o})")
        if not self.is_rough(a):
            forms += forms_of(
                "{a}.amax({d}, keepdim={k}); {a}.amin({d}, keepdim={k}); {a}.any({o}, keepdim={k}); "
                "{a}.all(); {a}.argmax({o}, keepdim={k}); {a}.max({o})[1]; {a}.min({o}, keepdim={k})[0]; "
                "{a}.sort({o}, stable=True)[0]; ({a} != 0).sum({d}, keepdim={k}); {a}.argmin(); "
                "{a}.cummax({o})[0]; {a}.count_nonzero({o}); {a}.prod({o}); {a}.topk(1, {o})[0]; "
                "{a}.topk(min([3, *{a}.shape[{o}:][:1]]), {o}, largest={k})[0]"
            )
        o = self.random.choice(dims) - (x.dim() if self.random.random() < 0.5 else 0) if dims else 0
        return "{new} = " + self.random.choice(forms).format(a=a, d=tuple(dims), k=keep, o=o), True

    def join(self) -> tuple[str, bool]:
        a = self.pick(lambda x: x.dim() > 0)
        d = self.axis(a)
        b = self.pick(lambda x: x.dim() == self.values[a].dim())
        form = self.random.choice(
            forms_of(
                "torch.cat([{a}, {b}], {d}); torch.cat([{a}, {a}[{p}], {b}], {d}); "
                "torch.stack([{a}, {b}], {d}); torch.nn.functional.pad({a}, (1, 2)); "
                "torch.cat([{a}.flatten(), {b}.flatten()]); torch.hstack([{a}, {b}]); "
                "torch.nn.functional.pad({a}, (-1, 1), value=3)"
            )
        )
        return "{new} = " + form.format(a=a, b=b, d=d, p=self.piece(self.values[a].dim())), True

    def chosen(self) -> tuple[str, bool]:
        a, m = self.pick(), self.pick(exact=True)
        form = self.random.choice(
            forms_of(
                "torch.where({m} > 0, {a}, 0); {a}.masked_fill({m} > 0, -1); {a}.triu(); {a}.tril(1); "
                "torch.where({m} == 0, -{a}, {a})"
            )
        )
        return "{new} = " + form.format(a=a, m=m), True

    def _places(self, count: int, extent: int) -> str:
        """Places along a dimension, some of them negative, some twice."""
        places = [self.random.randrange(-extent, extent) for _ in range(count)]
        return f"torch.tensor({places}, device=x0.device)"

    def gathered(self) -> tuple[str, bool]:
        a = self.pick(lambda x: x.dim() > 0 and x.numel() > 0)
        x, d = self.values[a], self.axis(a)
        places = self._places(self.random.randrange(1, 5), x.shape[d])
        before = ", ".join([":"] * (d % x.dim()) + [places])
        first = self._places(3, x.shape[0])
        form = self.random.choice(
            forms_of(
                "{a}[{p}]; {a}.index_select({d}, {q} % {n}); {a}[{f}]; {a}.take({q} % {n}); "
                "torch.take_along_dim({a}, {a}.argsort({d}, stable=True), {d})"
            )
        )
        if "argsort" in form and self.is_rough(a):
            raise LookupError
        return "{new} = " + form.format(a=a, p=before, d=d, q=places, n=x.shape[d], f=first), True

    def scattered(self) -> tuple[str, bool]:
        a = self.pick(lambda x: x.dim() > 0 and x.numel() > 0)
        x, d = self.values[a], self.axis(a)
        count = self.random.randrange(1, 5)
        places = self._places(count, x.shape[d])
        forms = forms_of(
            "{a}.index_add({d}, {p} % {n}, {a}.index_select({d}, {q} % {n})); "
            "{a}.index_fill({d}, {p} % {n}, 2); {a}.index_put(({f},), {a}[{g}], accumulate=True); "
            "{a}.scatter_add({d}, torch.zeros_like({a}, dtype=torch.int64), {a}); {a}.scatter_reduce({d}, "
            " torch.zeros_like({a}, dtype=torch.int64), {a}, 'amax', include_self={k})"
        )
        form = self.random.choice(forms).format(
            a=a, d=d, n=x.shape[d], p=places, q=self._places(count, x.shape[d]), k=self.random.choice((True, False)),
            f=self._places(count, x.shape[0]), g=self._places(count, x.shape[0]),
        )  # fmt: skip
        if "amax" in form and self.is_rough(a):
            raise LookupError
        return "{new} = " + form, True

    def write(self) -> tuple[str, bool]:
        """In place, also into arguments and views; what is written may be a view of the same tensor."""
        a = self.pick()
        b = self.pick()
        rank = self.values[a].dim()
        p = self.piece(rank) if rank else "..."
        forms = forms_of(
            "{a}.add_({c}); {a}.mul_({c}); {a}[{p}] = {c}; {a}[{p}].add_({c}); {a}.copy_({b}); "
            "{a}.zero_(); {a}.add_({b}); {a}[{p}] = {b}; {a}[{p}] += {c}; {a}.neg_(); {a}.mul_({b}); "
            "{a}.fill_({c})"
        )
        if rank > 1:
            forms += (
                ["{a}.transpose_(0, 1)", "{a}.unsqueeze_(0)", "{a}.t_()"]
                if a.startswith("v")
                else []
            )
        if not self.is_rough(a):
            forms += forms_of(
                "{a}.clamp_(min=0); {a}.masked_fill_({a} > 0, {c}); {a}[{a} > 0] = {c}"
            )
        return self.random.choice(forms).format(a=a, b=b, c=self.constant(a), p=p), True

    def put(self) -> tuple[str, bool]:
        a = self.pick(lambda x: x.dim() > 0 and x.numel() > 0)
        x, d = self.values[a], self.axis(a)
        count = self.random.randrange(1, 5)
        forms = forms_of(
            "{a}.index_put_(({f},), {a}[{g}].clone(), accumulate=True); "
            "{a}.index_add_({d}, {p} % {n}, {a}.index_select({d}, {p} % {n})); {a}[{f}] = {c}; "
            "{a}.index_fill_({d}, {p} % {n}, 3); {a}[{f}] += {c}; "
            "{a}.scatter_({d}, torch.zeros_like({a}, dtype=torch.int64), 2)"
        )
        return self.random.choice(forms).format(
            a=a, d=d, n=x.shape[d], c=self.constant(a), p=self._places(count, x.shape[d]),
            f=self._places(count, x.shape[0]), g=self._places(count, x.shape[0]),
        ), True  # fmt: skip
