"""Runs the code of a page: each block in order, in one namespace, and compares what it prints with the block behind it.

```python                      runs; a kernel finds its source, since the block has a file
```text                        behind it: what it prints, or the error that it ends with; `...` stands for anything
```python title="with torch"   runs where torch is; likewise "with JAX", "with Numba", "on a GPU"
```python title="add.py"       is written to that file
```sh                          runs if every line begins a Python program: `python add.py`, `TESSERA_X=1 python …`
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"(?:[A-Z_]+=\S+ )*python ")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A block of code of a page, the line it begins at, and what is said to come out (None: nothing is said)."""

    language: str
    title: str
    code: str
    line: int
    output: str | None


class PageError(AssertionError):
    """The code of a page does not do what the page says."""


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


NEEDS: dict[str, Callable[[], bool]] = {
    "with torch": lambda: importlib.util.find_spec("torch") is not None,
    "with JAX": lambda: importlib.util.find_spec("jax") is not None,
    "with Numba": lambda: importlib.util.find_spec("numba") is not None,
    "on a GPU": _has_cuda,
}


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are code, each with the `text` block that follows it."""
    found: list[Block] = []
    matches = list(FENCE.finditer(text))
    for match, after in zip(matches, [*matches[1:], None]):
        if match[1] == "text":
            continue
        follows = (
            after is not None
            and after[1] == "text"
            and not text[match.end() : after.start()].strip()
        )
        output = after[3] if after is not None and follows else None
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(match[1], match[2] or "", match[3], line, output))
    return found


def can_run(block: Block) -> bool:
    """Whether a block is for running, here."""
    if block.language == "python":
        return block.title not in NEEDS or NEEDS[block.title]()
    lines = block.code.strip().splitlines()
    return block.language == "sh" and all(PROGRAM.match(line) for line in lines)


def run_page(
    page: Path, folder: Path, write: bool = False, namespace: dict[str, Any] | None = None
) -> int:
    """Run a page's blocks in `folder`; return how many ran. Raises PageError where the page says something else.

    With `write` the page says afterwards what comes out. `namespace` gets the names that the page defines.
    """
    folder = folder.resolve()
    source = page.read_text("utf-8")
    names: dict[str, Any] = {} if namespace is None else namespace
    names["__name__"] = "__main__"
    count = 0
    with contextlib.chdir(folder), _at_home(folder):
        for block in filter(can_run, blocks(source)):
            count += 1
            if block.title.endswith(".py"):
                Path(block.title).write_text(block.code, encoding="utf-8")
                continue
            run = _program if block.language == "sh" else _statements
            found = re.sub(rf"{re.escape(str(folder))}/(block-\d+/)?", "", run(block, page, names))
            if block.output is not None and not matches(block.output, found):
                if not write:
                    raise PageError(
                        f"{page}:{block.line}: the page says\n{block.output}\nbut it is\n{found}"
                    )
                before = f"{block.code}```\n\n```text\n"
                source = source.replace(before + block.output, f"{before}{found.rstrip()}\n")
    if write:
        page.write_text(source, encoding="utf-8")
    return count


@contextlib.contextmanager
def _at_home(folder: Path) -> Iterator[None]:
    """Import files of the page from its folder, and keep compiled kernels there: they know what file they are of. A
    page prints the name of the target, so it runs for the CPU that is there whatever the environment asks for."""
    before = {name: os.environ.pop(name, None) for name in ("TESSERA_CACHE_DIR", "TESSERA_CPU")}
    os.environ["TESSERA_CACHE_DIR"] = str(folder / "cache")
    modules = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - modules:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[name]
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def matches(said: str, found: str) -> bool:
    """Whether an output is what a page says, but for blanks and what `...` stands for."""
    return doctest.OutputChecker().check_output(said, found, OPTIONS)


def _statements(block: Block, page: Path, namespace: dict[str, Any]) -> str:
    """Run a block of Python; return what it prints, or its error's text."""
    file = Path(
        f"block-{block.line}", f"{page.stem}.py"
    )  # a kernel of an earlier block still finds its file
    file.parent.mkdir(exist_ok=True)
    file.write_text(block.code, encoding="utf-8")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings(action="ignore"):
        try:
            exec(
                compile(file.read_text("utf-8"), str(file.resolve()), "exec", dont_inherit=True),
                namespace,
            )
        except Exception as error:
            if block.output is None:
                raise PageError(f"{page}:{block.line}: {type(error).__name__}: {error}") from error
            return out.getvalue() + str(error)
    return out.getvalue()


def _program(block: Block, page: Path, _namespace: dict[str, Any]) -> str:
    """Run the programs of a block of shell; return what they print."""
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
    code = re.sub(r"(^|\s)python ", rf"\1{sys.executable} ", block.code)
    done = subprocess.run(
        ["bash", "-c", code], env={**os.environ, "PYTHONPATH": path}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if done.returncode and block.output is None:
        raise PageError(f"{page}:{block.line}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def main(args: list[str]) -> int:
    """`python -m tools.site.code [--write] PAGE...`: run pages, say how long each took."""
    write = "--write" in args
    for name in (arg for arg in args if arg != "--write"):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            count = run_page(Path(name).resolve(), Path(folder), write)
        print(f"{name}: {count} blocks, {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
