"""Compiles a kernel again without an optimisation that made its compilation fail.

If compilation fails in a pass that has just applied an optimisation, that one is to blame. Otherwise compilation is
repeated with fewer applications, by bisection, to find the first with which it fails; if it fails with none, no
optimisation is to blame. Mistakes in a kernel are never retried, nor failures before any optimisation was applied.
TESSERA_STRICT=1, or a limit of applications, lets the first error through."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.config import knobs
from tessera.config.optimizations import OPTIMIZATIONS, OptimizationWarning, names_in
from tessera.errors import (
    CompilationTimeout,
    InternalError,
    OutOfResources,
    PTXASError,
    TesseraError,
)
from tessera.ir.applications import Application, Session

StageOutputs = tuple[dict[str, Any], dict[str, Any]]
Attempt = Callable[[], StageOutputs]
Dropped = tuple[str, str]  # name, message
ROUNDS = 4  # optimisations that are dropped one by one; then all are


class StageFailed(Exception):
    """A stage failed for a reason that is not the kernel author's mistake. `outputs`: of the stages before; `level`: of
    its input."""

    def __init__(self, error: InternalError, level: str, outputs: dict[str, Any]):
        super().__init__(str(error))
        self.error, self.level, self.outputs = error, level, outputs


class Fallback:
    """Compiles one kernel by `attempt`. `disabled`: what the kernel's options switch off; `reproduce`: writes how to
    repeat a failure, and returns where; `theirs`: whether the user's own stages or assembly may have failed."""

    def __init__(
        self,
        attempt: Attempt,
        kernel: str,
        disabled: str,
        reproduce: Callable[[], str],
        theirs: Callable[[Exception], bool],
    ) -> None:
        self.attempt, self.kernel = attempt, kernel
        self.reproduce, self.theirs = reproduce, theirs
        self.off = names_in(disabled)
        self.strict = knobs.compilation.strict or knobs.compilation.opt_limit is not None
        self.dropped: list[Dropped] = []

    def run(self) -> StageOutputs:
        """Return (outputs by stage, metadata), whose `dropped_optimizations` says what was dropped and why."""
        first: Exception | None = None
        while True:
            session = Session(self.kernel, self.off)
            try:
                with session:
                    outputs, metadata = self.attempt()
            except Exception as error:
                first = first or error
                try:
                    found = self._culprit(error, session)
                except CompilationTimeout:  # during the search
                    found = None
                if found is None:
                    session.commit()
                    raise first from first.__cause__
                self._drop(found, error)
                continue
            session.commit()
            self._tell(metadata)
            return outputs, metadata

    def _culprit(self, error: Exception, session: Session) -> Application | None:
        """Return the application to drop; None if the error is to be raised."""
        suspects = {a.name: a for a in session.suspects}
        if suspects and isinstance(error, StageFailed):
            told = "; ".join(map(str, suspects.values()))
            error.error.note(f"after {told}; TESSERA_DISABLE={','.join(suspects)} leaves it out")
        if self.strict or not self._may_be_ours(error, session) or self.off >= names_in("all"):
            return None
        return next(iter(suspects.values())) if len(suspects) == 1 else self._search(session)

    def _may_be_ours(self, error: Exception, session: Session) -> bool:
        if not session.applied or self.theirs(error):
            return False
        if isinstance(error, OutOfResources):
            return any(OPTIMIZATIONS[a.name].takes_room for a in session.applied)
        return isinstance(error, (PTXASError, StageFailed))

    def _search(self, session: Session) -> Application | None:
        """Return the first application with which compilation fails."""
        low, high = 0, len(session.applied)
        if self._fails(low):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fails(middle) else (middle, high)
        return session.applied[high - 1]

    def _fails(self, limit: int) -> bool:
        try:
            with Session(self.kernel, self.off, limit):
                self.attempt()
        except CompilationTimeout:
            raise
        except Exception:
            return True
        return False

    def _drop(self, found: Application, error: Exception) -> None:
        where = self.reproduce()
        place = f" at {found.loc.short()}" if found.loc is not None else ""
        text = (
            f"the optimisation {found.name} failed and was left out of kernel {self.kernel} "
            f"({found.what}{place}): {_summary(error)}; reproducer: {where}"
        )
        self.dropped.append((found.name, text))
        self.off |= {found.name} if len(self.dropped) < ROUNDS else names_in("all")

    def _tell(self, metadata: dict[str, Any]) -> None:
        if self.dropped:
            texts = tuple([text for _, text in self.dropped])
            metadata["remarks"] = (*metadata.get("remarks", ()), *texts)
            metadata["dropped_optimizations"] = tuple(self.dropped)
            # Its fallback variants are compiled without these, too.
            metadata["disable_optimizations"] = ",".join(sorted(self.off))


def _summary(error: Exception) -> str:
    """Return the first line of an error."""
    if isinstance(error, StageFailed):
        error = error.error
    text = error.message if isinstance(error, TesseraError) else str(error)
    return text.strip().split("\n")[0]


def warn_of_dropped(metadata: Mapping[str, Any], file: str, line: int) -> None:
    """Emit one OptimizationWarning for a kernel, at its first line, that was compiled without what failed."""
    dropped: Sequence[Dropped] = metadata.get("dropped_optimizations", ())
    if dropped:
        text = "\n".join([text for _, text in dropped])
        warnings.warn_explicit(text, OptimizationWarning, file, line)
