"""Knobs: precedence of Python value, environment and default; scopes; types; hook chains."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import tessera.knobs as module
from tessera.config import HookChain, Knobs, env, knobs, settings


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    with knobs.scope():
        yield


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TESSERA_INTERPRET", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)
    assert knobs.runtime.interpret is False
    monkeypatch.setenv("TRITON_INTERPRET", "yes")
    assert knobs.runtime.interpret is True
    monkeypatch.setenv("TESSERA_INTERPRET", "0")
    assert knobs.runtime.interpret is False
    knobs.runtime.interpret = True
    assert os.environ["TESSERA_INTERPRET"] == "1"
    os.environ["TESSERA_INTERPRET"] = "0"
    assert knobs.runtime.interpret is True
    knobs.runtime.interpret = env
    assert knobs.runtime.interpret is False


@pytest.mark.parametrize("text", ["1", "Y", "on", "YES", "true", "True"])
def test_true_texts(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TESSERA_VERIFY", text)
    assert knobs.compilation.verify is True


@pytest.mark.parametrize("text", ["0", "no", "", "2", "off"])
def test_false_texts(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TESSERA_VERIFY", text)
    assert knobs.compilation.verify is False


def test_propagation_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESSERA_NUM_THREADS", raising=False)
    monkeypatch.setattr(settings, "propagate_env", True)
    switch: Any = module
    switch.propagate_env = False
    assert settings.propagate_env is False
    knobs.runtime.num_threads = 3
    assert "TESSERA_NUM_THREADS" not in os.environ
    assert knobs.runtime.num_threads == 3
    switch.propagate_env = True
    knobs.runtime.num_threads = 4
    assert os.environ["TESSERA_NUM_THREADS"] == "4"
    knobs.runtime.num_threads = None
    assert "TESSERA_NUM_THREADS" not in os.environ


def test_types_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"runtime\.interpret takes a bool, not 'yes'"):
        knobs.runtime.interpret = "yes"  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"runtime\.num_threads takes an int or None, not True"):
        knobs.runtime.num_threads = True
    with pytest.raises(TypeError, match=r"cache\.dir takes a path"):
        knobs.cache.dir = 3  # type: ignore[assignment]
    with pytest.raises(ValueError, match="must be one of ieee, tf32, tf32x3, not 'bf16'"):
        knobs.language.fp32_default = "bf16"
    monkeypatch.setenv("TESSERA_NUM_THREADS", "many")
    knobs.refresh()  # this one is read once
    with pytest.raises(ValueError, match="TESSERA_NUM_THREADS must be an integer, not 'many'"):
        _ = knobs.runtime.num_threads
    with pytest.raises(AttributeError):
        knobs.runtime.interprte = True  # type: ignore[attr-defined]


def test_scope_restores_values_environment_and_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_CACHE_DIR", "/before")
    with knobs.cache.scope(), knobs.runtime.scope():
        knobs.cache.dir = "/inside"
        knobs.runtime.launch_enter_hook.add(print)
        assert os.environ["TESSERA_CACHE_DIR"] == "/inside"
    assert knobs.cache.dir == "/before"
    assert os.environ["TESSERA_CACHE_DIR"] == "/before"
    assert not knobs.runtime.launch_enter_hook


def test_scope_keeps_hooks_added_before() -> None:
    knobs.runtime.launch_exit_hook.add(print)
    with knobs.runtime.scope():
        knobs.runtime.launch_exit_hook.add(repr)
    assert knobs.runtime.launch_exit_hook.calls == [print]
    assert knobs.runtime.launch_exit_hook.reverse


def test_copy_and_reset() -> None:
    knobs.compilation.verify = True
    other = knobs.compilation.copy()
    other.verify = False
    assert knobs.compilation.verify is True
    os.environ.pop("TESSERA_VERIFY")
    knobs.compilation.reset()
    assert knobs.compilation.verify is False


def test_paths_expand_and_depend_on_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TESSERA_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TESSERA_HOME", "/h")
    assert knobs.cache.dir == "/h/.tessera/cache"
    knobs.cache.dir = "~/c"
    assert knobs.cache.dir == os.path.expanduser("~/c")


def test_once_knobs_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs.refresh()
    monkeypatch.setenv("TESSERA_DEBUG", "0")
    assert knobs.runtime.debug is False
    monkeypatch.setenv("TESSERA_DEBUG", "1")
    assert knobs.runtime.debug is False
    module.refresh_knobs()
    assert knobs.runtime.debug is True


def test_hook_chain_order() -> None:
    seen: list[str] = []
    chain = HookChain(reverse=True)
    first, second = (lambda x: seen.append(f"1{x}")), (lambda x: seen.append(f"2{x}"))
    chain.add(first)
    chain.add(second)
    chain.add(first)
    chain("a")
    assert seen == ["2a", "1a"]
    chain.remove(second)
    chain.remove(second)
    chain("b")
    assert seen[2:] == ["1b"]


def test_assigning_a_function_makes_a_chain() -> None:
    seen: list[int] = []
    knobs.runtime.launch_enter_hook = seen.append
    knobs.runtime.launch_enter_hook(7)
    assert seen == [7]
    knobs.runtime.launch_enter_hook = None
    assert not knobs.runtime.launch_enter_hook


def test_cache_key_values_change_with_key_knobs_only() -> None:
    before = knobs.cache_key_values()
    knobs.compilation.time = not knobs.compilation.time
    assert knobs.cache_key_values() == before
    knobs.cpu.isa = "generic" if before["cpu.isa"] == "avx2" else "avx2"
    after = knobs.cache_key_values()
    assert {k for k in after if after[k] != before[k]} == {"cpu.isa"}


def test_module_path_is_the_same_object() -> None:
    assert module.runtime is knobs.runtime
    module.language.default_fp_fusion = False
    assert knobs.language.default_fp_fusion is False


def test_every_knob_is_documented() -> None:
    lines = Knobs().describe().splitlines()
    assert len(lines) > 30
    assert all(line.split(" | ")[-1] for line in lines)
