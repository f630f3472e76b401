"""Defines `Config`, one choice of meta-parameters for a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from tessera.runtime.launching.mistakes import named_arguments

LAUNCH_OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")


def hashable(value: object) -> Any:
    """Return the value, or the text of a container that has no hash. TypeError for other values without a hash."""
    try:
        hash(value)
    except TypeError:
        if type(value) in (tuple, list, dict, set):
            return repr(value)
        raise
    return value


class Config:
    """One choice of meta-parameters: values for constexpr parameters, and launch options.

    `pre_hook(args_by_name)` runs before every launch with this config. Options that are None are left to the target.

    Example:
        >>> tessera.Config({"BLOCK": 128}, num_warps=8).all_kwargs()
        {'BLOCK': 128, 'num_warps': 8, 'num_ctas': 1, 'num_stages': 3}
    """

    @named_arguments
    def __init__(
        self,
        kwargs: Mapping[str, object],
        num_warps: int | None = 4,
        num_stages: int | None = 3,
        num_ctas: int | None = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[[dict[str, Any]], object] | None = None,
        ir_override: str | None = None,
    ) -> None:
        self.kwargs: dict[str, Any] = dict(kwargs)
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.num_ctas = num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook
        self.ir_override = ir_override

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickles of older versions lack the newer options.
        self.__init__(state.get("kwargs", {}))
        self.__dict__.update(state)

    def all_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments that this config adds to a launch."""
        options = {name: getattr(self, name) for name in LAUNCH_OPTIONS}
        return {**self.kwargs, **{name: v for name, v in options.items() if v is not None}}

    def __str__(self) -> str:
        shown = [f"{name}: {value}" for name, value in self.kwargs.items()]
        shown += [f"{name}: {getattr(self, name)}" for name in LAUNCH_OPTIONS[:4]]
        shown += [f"ir_override: {self.ir_override}"] if self.ir_override is not None else []
        return ", ".join(shown)

    def __repr__(self) -> str:
        return f"Config({self})"

    def identity(self, idle: Sequence[str] = ()) -> tuple[Any, ...]:
        """Return what distinguishes a config from others, ignoring the options `idle`."""
        given = sorted(self.all_kwargs().items(), key=itemgetter(0))
        kept = [(name, hashable(value)) for name, value in given if name not in idle]
        return (*kept, self.pre_hook)

    def __hash__(self) -> int:
        return hash(self.identity())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.identity() == other.identity()


def shown(config: Config | str) -> str:
    """Return a config's text, which is also its key on disk, as commands show it: without a limit that is not set."""
    return str(config).removesuffix(", maxnreg: None")
