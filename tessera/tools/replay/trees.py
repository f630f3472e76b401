"""Records source trees: a commit or the working tree is copied to a fixed path and compiled there.

Both sides of a comparison are at the same path, one after the other, so that paths do not differ. The recording of
a commit is kept and reused.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tessera.backends.nvidia.ptxas import find_tool
from tessera.config import knobs
from tessera.errors import ToolNotFound

RECORDER = Path(__file__).with_name("recorder.py")
COPIED = ("tessera", "examples", "benchmarks", "tests")
KEPT = 20  # recordings; the oldest go first


class ReplayError(Exception):
    """A tree cannot be recorded: there is no such commit, or its code does not start."""


@dataclass(frozen=True)
class Settings:
    """What is recorded: names of targets, which kernels, recorded tile IR, whether machine code is made."""

    targets: str = ""
    only: str = ""
    inputs: str = ""
    binary: bool = True
    jobs: int = 1

    def arguments(self) -> list[str]:
        """The recorder's arguments."""
        given = ["--jobs", str(self.jobs)]
        for name in ("targets", "only", "inputs"):
            if getattr(self, name):
                given += [f"--{name}", getattr(self, name)]
        return given if self.binary else [*given, "--no-binary"]

    def digest(self) -> str:
        """A digest of everything that a recording depends on besides the tree."""
        parts = [self.targets, self.only, str(self.binary), RECORDER.read_text(encoding="utf-8")]
        parts += [sys.version, version("llvmlite"), _ptxas() if self.binary else ""]
        for path in sorted(Path(self.inputs).glob("*")) if self.inputs else ():
            parts += [path.name, hashlib.sha256(path.read_bytes()).hexdigest()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class NoCommit(ReplayError):
    """The commit is not here, as in a shallow clone, or there is no repository."""


def _ptxas() -> str:
    """Return the path of the assembler; "" if there is none."""
    try:
        return find_tool("ptxas")
    except ToolNotFound:
        return ""


def git(*arguments: str) -> bytes:
    """Return what git prints. Raises ReplayError if it fails."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ReplayError("there is no git, which copies the commits") from error
    if done.returncode:
        raise ReplayError(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout


def tree_of(commit: str) -> str:
    """Return the hash of a commit's tree. Raises NoCommit if it is not here."""
    try:
        return git("rev-parse", "--verify", f"{commit}^{{tree}}").decode().strip()
    except ReplayError as error:
        raise NoCommit(f"no commit {commit} here: {error}") from error


def working_tree() -> str:
    """Return a hash of the current files of the working tree."""
    digest = hashlib.sha256()
    for name in _working_files():
        digest.update(name.encode() + b"\0" + hashlib.sha256(Path(name).read_bytes()).digest())
    return digest.hexdigest()


def recording_of(commit: str | None, settings: Settings) -> Path:
    """Return the recording of a commit, or of the working tree for None; make it unless an earlier call has."""
    home = Path(str(knobs.cache.dir)) / "replay"
    home.mkdir(parents=True, exist_ok=True)
    key = tree_of(commit) if commit is not None else working_tree()
    done = home / f"{key[:16]}-{settings.digest()[:16]}.zip"
    with _locked(home / "lock"):
        if done.exists():
            os.utime(done)
            return done
        tree = home / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        _copy_commit(commit, tree) if commit is not None else _copy_working_tree(tree)
        _record(tree, done, settings)
        shutil.rmtree(tree, ignore_errors=True)
        _prune(home)
    return done


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Allow one recording at a time, since they share a path."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _copy_commit(commit: str, tree: Path) -> None:
    there = git("ls-tree", "--name-only", commit).decode().split()
    data = git("archive", commit, *(name for name in COPIED if name in there))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        # Python 3.11.0 to 3.11.3 has no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tree)


def _copy_working_tree(tree: Path) -> None:
    """Copy tracked files as they are now, and new ones that git does not ignore."""
    for name in _working_files():
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(name, target)


def _working_files() -> Iterator[str]:
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *COPIED)
    return (name for name in listed.decode().split("\0") if name and os.path.isfile(name))


def _record(tree: Path, out: Path, settings: Settings) -> None:
    """Run the recorder on a tree, in a process without the user's knobs. Raises ReplayError if it fails."""
    partial = out.with_suffix(".partial")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TESSERA_", "TRITON_"))}
    kept |= {k: v for k, v in os.environ.items() if k.startswith("TESSERA_") and "PATH" in k}
    environment = {
        **kept,
        "PYTHONPATH": str(tree),
        "PYTHONHASHSEED": "0",
        "TESSERA_STRICT": "1",
        "TESSERA_DISABLE_LINE_INFO": "1",
        "TESSERA_CACHE_DIR": str(tree / ".cache"),
    }
    command = [sys.executable, "-P", str(RECORDER), str(tree), str(partial), *settings.arguments()]
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, check=False)
    if done.returncode:
        raise ReplayError(f"the kernels were not recorded:\n{done.stderr.decode()[-2000:]}")
    partial.rename(out)


def _prune(home: Path) -> None:
    files = sorted(home.glob("*.zip"), key=lambda path: path.stat().st_mtime)
    for path in files[:-KEPT]:
        path.unlink(missing_ok=True)
