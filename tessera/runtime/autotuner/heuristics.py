"""Chooses meta-parameters by rules: `heuristics` computes parameters of a kernel from its other arguments.

@tessera.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@tessera.jit
def kernel(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from tessera.compiler.tracebacks import trim_traceback
from tessera.errors import InvalidTuning, suggestion
from tessera.runtime.launching.binding import OPTIONS
from tessera.runtime.launching.interface import Wrapper
from tessera.runtime.launching.mistakes import call_with_names


class Heuristics(Wrapper):
    """A kernel some of whose parameters are computed from the others; made by `heuristics`."""

    def __init__(
        self,
        fn: object,
        arg_names: list[str],
        values: Mapping[str, Callable[[dict[str, Any]], object]],
    ) -> None:
        super().__init__("heuristics", fn, arg_names)
        if not isinstance(cast("object", values), Mapping):
            text = f"the heuristics of {self.__name__} are no dict, but {values!r}"
            raise InvalidTuning(text, help='write `{"BLOCK": lambda args: ...}`')
        self.values = values
        for name, rule in values.items():
            if not callable(rule):
                text = f"the heuristic for {name!r} of {self.__name__} is no function, but {rule!r}"
                raise InvalidTuning(text, help=f"write `lambda args: {rule!r}`")
            if name not in self.arg_names and name not in OPTIONS:
                near = (
                    suggestion(name, [*self.arg_names, *OPTIONS])
                    or f"there are {', '.join(self.arg_names)}"
                )
                text = f"{self.__name__} has no parameter {name!r} for a heuristic to set"
                raise InvalidTuning(text, help=near)

    @trim_traceback
    def run(self, *args: object, **kwargs: object) -> Any:
        """Launch with the computed values added; each rule sees the results of the earlier ones."""
        return self.fn.run(*args, **self._with_values(args, kwargs))

    def warmup(self, *args: object, **kwargs: object) -> Any:
        return self.fn.warmup(*args, **self._with_values(args, kwargs))

    def check_fit(self, *args: object, **kwargs: object) -> None:
        self.fn.check_fit(*args, **self._with_values(args, kwargs))

    def _with_values(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        named = {**dict(zip(self.arg_names, args)), **kwargs}
        added = dict(kwargs)
        for name, rule in self.values.items():
            what = f"the heuristic for {name!r}"
            added[name] = named[name] = call_with_names(
                self.__name__, what, rule, named, self.arg_names
            )
        return added


def heuristics(
    values: Mapping[str, Callable[[dict[str, Any]], object]],
) -> Callable[[Any], Heuristics]:
    """Decorator: compute parameters of a kernel, or options of its launch, from its other arguments.

    `values` maps the name of a parameter or option to a function of a dict of all named arguments, which includes the
    results of earlier entries. What a function raises, the launch raises.

    Example:
        >>> sized = tessera.heuristics({"BLOCK": lambda args: tessera.next_power_of_2(args["n"])})(double)
        >>> x = np.arange(5, dtype=np.float32)
        >>> _ = sized[(1,)](x, 5)
        >>> x
        array([0., 2., 4., 6., 8.], dtype=float32)
    """

    @trim_traceback
    def decorate(fn: object) -> Heuristics:
        return Heuristics(fn, getattr(fn, "arg_names", []), values)

    return decorate
