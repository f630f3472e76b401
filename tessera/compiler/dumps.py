"""Keeps outputs of stages in files: dumps, files that override outputs, and IR that line information refers to."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tessera.backends.compiler import Options
from tessera.compiler.source import ALIASES
from tessera.config import knobs
from tessera.errors import InvalidOption, Loc
from tessera.ir import Module, parse_module, print_with_lines

LONGEST_NAME = 200  # of a file without its suffix; file systems take 255 bytes


def file_name(name: str, stage: str) -> str:
    """Return the file of a kernel's output; names too long for file systems are cut and made unique by a digest."""
    if len(name.encode()) > LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = name.encode()[: LONGEST_NAME - 17].decode(errors="ignore") + "-" + digest
    return f"{name}.{stage}"


def dump(shown: str | bytes, stage: str, name: str, key: str) -> Path:
    """Write a stage's output, binary or as text, into the folder of dumps."""
    folder = Path(str(knobs.cache.dump_dir)) / key
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(name, stage)
    path.write_bytes(shown if isinstance(shown, bytes) else shown.encode())
    return path


def replacement(stage: str, name: str, key: str, options: Options) -> Path | None:
    """The file to take in place of a stage's output: by the option `ir_override`, whose suffix names the stage, or
    from the folder of overrides."""
    if options.ir_override and _level_of(options.ir_override) == stage:
        return Path(options.ir_override)
    if knobs.compilation.override:
        path = Path(str(knobs.cache.override_dir)) / key / file_name(name, stage)
        return path if path.exists() else None
    return None


def read_output(path: Path, output: object) -> tuple[Any, Any]:
    """Return (what the file has in place of `output`, the same as bytes or text)."""
    if isinstance(output, bytes):
        data = path.read_bytes()
        return data, data
    text = path.read_text(encoding="utf-8")
    return (parse_module(text) if isinstance(output, Module) else text), text


def override_text(options: Options) -> str:
    """Return what the option `ir_override` adds to a kernel's key: the digest of the file."""
    if not options.ir_override:
        return ""
    try:
        return hashlib.sha256(Path(options.ir_override).read_bytes()).hexdigest()
    except (OSError, TypeError) as error:
        why = getattr(error, "strerror", "it is no path")
        raise InvalidOption(
            f"ir_override names {options.ir_override!r}, which cannot be read: {why}"
        ) from error


def located_level() -> str | None:
    """Return the level of IR that line information refers to, if not the kernel's source."""
    level = knobs.compilation.use_ir_loc
    return ALIASES.get(level, level) if level is not None else None


def locate(module: Module, level: str, name: str, key: str) -> None:
    """Write the module into the folder of dumps, and set the ops' locations to their lines there."""
    text, lines = print_with_lines(module)
    path = dump(text, level, name, key).absolute()
    for op, line in lines.items():
        op.loc = Loc(str(path), line, function=name)


def _level_of(path: str) -> str:
    suffix = Path(path).suffix.removeprefix(".")
    return ALIASES.get(suffix, suffix)
