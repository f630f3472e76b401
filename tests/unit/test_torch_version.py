"""A torch that is missing or too old is said, with the remedy, wherever torch is needed."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from tessera import graph
from tessera.errors import TorchNotFound
from tessera.graph.torch.version import OLDEST, check_version


def refused() -> str:
    """What both doors say: the module of the backend, and `explain`."""
    sys.modules.pop("tessera.torch", None)
    with pytest.raises(TorchNotFound) as door:
        importlib.import_module("tessera.torch")
    with pytest.raises(TorchNotFound) as explain:
        graph.explain
    assert str(door.value) == str(explain.value)
    return str(door.value)


def test_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.4.1+cpu")
    text = refused()
    assert "torch 2.4.1+cpu is installed, 2.11 or newer is needed" in text
    assert "pip install" in text


@pytest.mark.parametrize(
    "version", ["2.11.0", "3.0a0+git12ab", "2.13.0.dev20261101+cpu", "2.11rc1"]
)
def test_builds_of_any_name_are_new_enough(version: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    check_version()


def test_a_torch_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert "torch is not installed" in refused()


def test_the_extra_installs_one_that_is_new_enough():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["torch"] == [f"torch>={'.'.join(map(str, OLDEST))}"]
