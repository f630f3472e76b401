"""What a release consists of agrees: versions, changelog, the form of commit messages."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import tessera
from tools.commit_message import faults

ROOT = Path(__file__).resolve().parents[2]
MINORS = re.compile(r"Python :: 3\.(\d+)$")


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_versions_agree():
    assert project()["version"] == tessera.__version__
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] in ("Unreleased", tessera.__version__)


def test_the_supported_versions_of_python_are_consecutive():
    classifiers = project()["classifiers"]
    assert isinstance(classifiers, list)
    minors = [int(found[1]) for text in classifiers if (found := MINORS.search(text))]
    assert project()["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("passes: keep loads masked\n\nThe mask was dropped.\n", None),
        ("tests, ci: run on all cores", None),
        ("benchmarks: (sanitize) random kernels\n# of git\n", None),
        ("Revert \"passes: keep loads masked\"", None),
        ("", "is empty"),
        ("keep loads masked", "begin with an area"),
        ("passes: keep loads masked.", "full stop"),
        ("passes: " + "x" * 65, "has 73 characters"),
        ("passes: keep loads masked\nThe mask was dropped.", "empty line"),
    ],
)  # fmt: skip
def test_commit_messages(message: str, complaint: str | None):
    found = faults(message)
    assert len(found) == (complaint is not None)
    assert complaint is None or complaint in found[0]


def test_hooks_of_pre_commit_run_what_exists():
    if importlib.util.find_spec("yaml") is None:
        pytest.skip("needs a parser of YAML, which pre-commit brings")
    import yaml

    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        for word in hook["entry"].split():
            if word.endswith(".py"):
                assert (ROOT / word).exists(), word
