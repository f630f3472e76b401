"""The cache of compiled kernels through classes of the user's, and the classes that are there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.runtime.cache.disk import CacheWarning, DiskCache
from tessera.runtime.cache.managers import (
    CacheManager,
    FileCacheManager,
    ManagedCache,
    RedisRemoteCacheBackend,
    RemoteCacheBackend,
    RemoteCacheManager,
    kernel_cache,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def restore(tmp_path: Path):
    with knobs.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        knobs.runtime.default_backend = "cpu"
        yield
        Kept.files.clear()
        Shelf.files.clear()


class Kept(FileCacheManager):
    """Counts what passes."""

    files: ClassVar[list[tuple[str, str]]] = []

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        self.files.append(("put", filename))
        return super().put(data, filename, binary)

    def get_file(self, filename: str) -> str | None:
        found = super().get_file(filename)
        self.files.append(("miss" if found is None else "hit", filename))
        return found


class Broken(CacheManager):
    """Its server is down."""

    def get_file(self, filename: str) -> str | None:
        raise ConnectionRefusedError("no server")

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        raise RuntimeError("no server")


class Shelf(RemoteCacheBackend):
    files: ClassVar[dict[tuple[str, str], bytes]] = {}

    def get(self, filenames: list[str]) -> dict[str, bytes]:
        return {f: self.files[self.key, f] for f in filenames if (self.key, f) in self.files}

    def put(self, filename: str, data: bytes) -> None:
        self.files[self.key, filename] = data


def launch() -> Any:
    @tessera.jit
    def doubled(x, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(x + i, tl.load(x + i) * 2)

    x = np.arange(16, dtype=np.float32)
    kernel = doubled[(1,)](x, 16)
    np.testing.assert_array_equal(x, 2 * np.arange(16))
    return kernel


def test_without_a_manager():
    assert isinstance(kernel_cache(), DiskCache)


@pytest.mark.parametrize("by_name", [False, True])
def test_kernels_pass_through_the_manager(by_name: bool):
    knobs.cache.manager_class = f"{__name__}:Kept" if by_name else Kept  # type: ignore[assignment]
    assert os.environ["TESSERA_CACHE_MANAGER"] == f"{__name__}:Kept"
    key = launch().hash
    assert [what for what, _ in Kept.files] == ["miss", "put"]
    assert launch().hash == key
    assert Kept.files[2:] == [("hit", f"{key}.tsr")]


def test_what_a_manager_gives_back_is_checked(tmp_path: Path):
    knobs.cache.manager_class = Kept
    launch()
    (path,) = (tmp_path / "cache").glob("*/*.tsr")
    path.write_bytes(path.read_bytes()[:-10])
    launch()
    assert [what for what, _ in Kept.files] == ["miss", "put", "hit", "put"]


def test_a_manager_that_fails_costs_a_warning():
    knobs.cache.manager_class = Broken
    with pytest.warns(CacheWarning) as caught:
        launch()
    assert [str(w.message) for w in caught] == [
        "the cache manager Broken could not read a kernel: ConnectionRefusedError: no server",
        "the cache manager Broken could not keep a kernel: RuntimeError: no server",
    ]


def test_what_is_no_class():
    for wrong in ("nonsense", "os:path", "no_such_module:X", "os:"):
        with pytest.raises(ValueError, match=r"cache\.manager_class"):
            knobs.cache.manager_class = wrong  # type: ignore[assignment]
    with pytest.raises(TypeError, match="a class, a text module:class or None"):
        knobs.cache.manager_class = 3  # type: ignore[assignment]


def test_a_remote_backend(tmp_path: Path):
    knobs.cache.manager_class = RemoteCacheManager
    with pytest.raises(RuntimeError, match=r"needs cache\.remote_manager_class"):
        RemoteCacheManager("A")
    knobs.cache.remote_manager_class = Shelf
    key = launch().hash
    assert [name for _, name in Shelf.files] == [f"{key}.tsr"]
    knobs.cache.dir = str(tmp_path / "another machine")
    found = ManagedCache(RemoteCacheManager).get(key)
    assert found is not None
    assert len(list((tmp_path / "another machine").glob(f"*/{key}.tsr"))) == 1
    Shelf.files.clear()
    assert ManagedCache(RemoteCacheManager).get(key) == found  # from the folder now
    assert ManagedCache(RemoteCacheManager).get("0" * 64) is None
    assert RemoteCacheManager("A", dump=True).backend is None


def test_redis(monkeypatch: pytest.MonkeyPatch):
    kept: dict[str, bytes] = {}

    def server(host: str, port: int) -> Any:
        assert (host, port) == ("server", 7000)
        return SimpleNamespace(
            mget=lambda names: [kept.get(n) for n in names], set=kept.__setitem__
        )

    monkeypatch.setitem(sys.modules, "redis", SimpleNamespace(Redis=server))
    knobs.redis.host, knobs.redis.port = "server", 7000
    backend = RedisRemoteCacheBackend("K")
    backend.put("a", b"1")
    assert kept == {"triton:K:a": b"1"}
    assert backend.get(["a", "b"]) == {"a": b"1"}
    knobs.redis.key_format = "{filename}/{key}"
    assert backend.get(["a"]) == {}


def test_the_names_in_triton():
    code = """
import tessera.compat, tessera.knobs
from triton.runtime import cache
from tessera.runtime.cache import managers as cache_managers
assert cache.RemoteCacheManager is cache_managers.RemoteCacheManager
tessera.knobs.cache.manager_class = cache.RemoteCacheManager
tessera.knobs.cache.remote_manager_class = "tests.unit.test_cache_managers:Shelf"
manager = cache.get_cache_manager("0" * 64)
print(type(manager).__name__, manager.key == "A" * 52, manager.backend.key == manager.key)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "RemoteCacheManager True True\n"
