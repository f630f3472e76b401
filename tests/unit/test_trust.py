"""Cache folders and files that another user could have written are not used. Other users are simulated: this process
takes itself for another one than the owner of its files."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.runtime.autotuner import store as tuning_store
from tessera.runtime.cache import disk as cache
from tessera.runtime.cache import trust
from tessera.runtime.cache.disk import CacheWarning, disk_cache
from tessera.runtime.cache.managers import FileCacheManager

pytestmark = pytest.mark.skipif(trust.me() is None, reason="needs users")
KEY = "ab" * 32
OTHER = 4_000_000_123  # a user that owns nothing


@tessera.jit
def fill(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, 7, i < n)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache, "_caches", {})
    private: list[Path] = []

    def made() -> Path:
        if not private:
            private.append(tmp_path / "private")
            private[0].mkdir(mode=0o700)
        return private[0]

    monkeypatch.setattr(cache, "private_folder", made)
    with knobs.scope():
        knobs.cache.home_dir = str(tmp_path / "home")
        knobs.cache.dir = str(tmp_path / "cache")
        knobs.cache.shared_dir = None
        yield


def folder(path: Path, mode: int = 0o755) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    return path


def be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "me", lambda: OTHER)
    monkeypatch.setattr(trust, "ROOT", OTHER)  # the tests may run as root


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
def test_folders_that_all_may_write(mode: int, tmp_path: Path):
    folder(tmp_path / "cache", mode)
    with pytest.warns(CacheWarning, match="is not used, but .*home.*: every user may write there"):
        assert disk_cache().folder == tmp_path / "home" / ".tessera" / "cache"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk_cache()  # one warning


def test_a_sticky_folder_holds_one_of_this_user(tmp_path: Path):
    """Nobody else can remove or rename that, so it is used without a warning."""
    folder(tmp_path / "cache", 0o1777)
    own = tmp_path / "cache" / f"tessera-{os.geteuid()}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert disk_cache().folder == own
        disk_cache().put(KEY, {"x": 3})
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert disk_cache().get(KEY) == {"x": 3}
    assert FileCacheManager("key").cache_dir == str(own / "key")


@pytest.mark.parametrize("planted", ["all may write", "link", "file"])
def test_a_sticky_folder_where_somebody_was_first(planted: str, tmp_path: Path):
    own = folder(tmp_path / "cache", 0o1777) / f"tessera-{os.geteuid()}"
    if planted == "all may write":
        folder(own, 0o777)
    elif planted == "link":
        own.symlink_to(folder(tmp_path / "elsewhere"))
    else:
        own.write_text("")
    with pytest.warns(CacheWarning, match="every user may write there"):
        assert disk_cache().folder == tmp_path / "home" / ".tessera" / "cache"


def test_a_sticky_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder(tmp_path / "cache", 0o1777)
    be_another(monkeypatch)
    with pytest.warns(CacheWarning, match="is not used"):
        assert disk_cache().folder == tmp_path / "home" / ".tessera" / "cache"


def test_folders_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder(tmp_path / "cache", 0o700)
    be_another(monkeypatch)
    with pytest.warns(CacheWarning, match=r"belongs to another user \(\w+\); make it yours alone"):
        assert disk_cache().folder == tmp_path / "home" / ".tessera" / "cache"


def test_no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The usual folder, too, is somebody else's."""
    folder(tmp_path / "cache", 0o777)
    folder(tmp_path / "home" / ".tessera" / "cache", 0o777)
    with pytest.warns(CacheWarning, match="but a folder of this process"):
        assert disk_cache().folder == tmp_path / "private"
    assert tuning_store.folder() == str(tmp_path / "private" / "autotune")
    assert FileCacheManager("key").cache_dir == str(tmp_path / "private" / "key")


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775])
def test_own_folders_are_used(mode: int, tmp_path: Path):
    folder(tmp_path / "cache", mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert disk_cache().folder == tmp_path / "cache"


def test_a_new_folder_is_private(tmp_path: Path):
    disk_cache().put(KEY, {"x": 1})
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert disk_cache().get(KEY) == {"x": 1}


def test_those_of_root_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder(tmp_path / "cache")
    monkeypatch.setattr(trust, "me", lambda: OTHER)
    monkeypatch.setattr(trust, "ROOT", os.geteuid())
    assert disk_cache().folder == tmp_path / "cache"


@pytest.mark.parametrize("planted", ["all may write", "another user"])
def test_single_files(planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = disk_cache()
    store.put(KEY, {"x": 1})
    if planted == "all may write":
        store.path_in(store.folder, KEY).chmod(0o666)
    else:
        be_another(monkeypatch)
    assert store.get(KEY) is None
    knobs.cache.trust = True
    store.put(KEY, {"x": 1})
    assert store.get(KEY) == {"x": 1}


def test_the_knob_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder(tmp_path / "cache", 0o777)
    be_another(monkeypatch)
    knobs.cache.trust = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert disk_cache().folder == tmp_path / "cache"


def test_shared_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They belong to somebody else, whose files are used; not where all may write, nor files of third users."""
    shared = folder(tmp_path / "shared")
    cache.DiskCache(shared).put(KEY, {"x": 2})
    knobs.cache.shared_dir = str(shared)
    be_another(monkeypatch)
    assert disk_cache().get(KEY) == {"x": 2}
    cache.DiskCache.path_in(shared, KEY).chmod(0o646)
    assert disk_cache().get(KEY) is None
    cache.DiskCache.path_in(shared, KEY).chmod(0o644)
    cache._caches.clear()
    shared.chmod(0o777)
    with pytest.warns(
        CacheWarning, match="is not looked into: every user may write there.*TESSERA_CACHE_SHARED"
    ):
        assert disk_cache().get(KEY) is None


def test_launches_go_on(tmp_path: Path):
    folder(tmp_path / "cache", 0o777)
    x = np.zeros(8, np.int32)
    with pytest.warns(CacheWarning) as caught:
        fill[(1,)](x, 8, BLOCK=8)
    assert [w.filename for w in caught] == [__file__]  # the line of the launch
    assert (x == 7).all()
    assert not any((tmp_path / "cache").iterdir())
    assert list((tmp_path / "home" / ".tessera" / "cache").glob("??/*.tsr"))


def test_the_folder_of_a_process():
    made = trust.private_folder()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert trust.private_folder() == made
    trust._remove(str(made), -1)  # in a forked child
    assert made.exists()
    trust._remove(str(made), os.getpid())
    assert not made.exists()
    trust.private_folder.cache_clear()
