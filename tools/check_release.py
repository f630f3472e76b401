"""Builds sdist and wheel into dist/ and checks them as docs/releasing.md says; `make release-check` runs it.

    python tools/check_release.py [--only 01,03]

It needs the packages `build` and `hatchling` in the Python that runs it, and PyPI for the empty environment.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
RUN_TIME = {"numpy", "llvmlite"}


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a program that knows nothing of this checkout."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(
            f"failed: {' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def build() -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT, cwd=ROOT)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def tracked(folder: str) -> set[str]:
    return set(run("git", "ls-files", folder, cwd=ROOT).split("\n")) - {""}


def check_wheel(wheel: Path) -> str:
    """The wheel's version; it has the package's files and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    if names != tracked("tessera"):
        sys.exit(f"the wheel and git disagree about {sorted(names ^ tracked('tessera'))}")
    needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", text, re.MULTILINE)
    if set(needed) != RUN_TIME:
        sys.exit(f"the wheel needs {needed}")
    return re.findall(r"^Version: (.+)$", text, re.MULTILINE)[0]


def check_versions(version: str) -> None:
    """The wheel has the package's version, and the changelog has a section for it or for what is unreleased."""
    own = re.findall(r'^__version__ = "(.+)"', (ROOT / "tessera/__init__.py").read_text(), re.M)
    if own != [version]:
        sys.exit(f"the wheel is {version}, tessera.__version__ is {own}")
    newest = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    print(f"version {version}, newest section of the changelog: {newest}")
    if newest not in ("Unreleased", version):
        sys.exit("CHANGELOG.md has no section for this version")


def check_installed(sdist: Path, wheel: Path, only: str) -> None:
    """The wheel works in an empty environment, with the examples of the sdist."""
    with tempfile.TemporaryDirectory(prefix="tessera-release-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        python = folder / "venv/bin/python"
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[demo]", cwd=folder)
        where = run(python, "-c", "import tessera; print(tessera.__file__)", cwd=folder)
        if not Path(where.strip()).is_relative_to(folder):
            sys.exit(f"the environment imports {where}")
        run(python, "-m", "tessera", "--help", cwd=folder)
        with tarfile.open(sdist) as archive:
            # Python 3.11.0 to 3.11.3 has no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder / "sdist")
        (unpacked,) = (folder / "sdist").iterdir()
        shutil.rmtree(unpacked / "tessera")  # the installed one is meant
        print(run(python, "examples/run_all.py", "--only", only, cwd=unpacked)[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="the numbers of some examples; default: all")
    only = parser.parse_args().only
    sdist, wheel = build()
    check_versions(check_wheel(wheel))
    check_installed(sdist, wheel, only)
    print(f"checked: {sdist.relative_to(ROOT)}, {wheel.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
