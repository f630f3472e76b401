"""Disk cache: round trips, damage, foreign files, folders that cannot be written, tiers, concurrent writers, keys."""

from __future__ import annotations

import enum
import errno
import hashlib
import json
import multiprocessing
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.config import knobs
from tessera.runtime.cache import disk as cache
from tessera.runtime.cache.disk import CacheWarning, DiskCache, decode, encode, key_of

PARTS = {
    "cubin": b"\x7fELF\0\xff",
    "ptx": "// é\n.version 8.6",
    "metadata": {"warps": 4, "names": ["x"], "f": 1.5},
}
KEY = key_of("kernel")


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    with knobs.scope():
        yield


def file_of(store: DiskCache, key: str = KEY) -> Path:
    return DiskCache.path_in(store.folder, key)


def test_round_trip_and_miss(tmp_path: Path):
    store = DiskCache(tmp_path / "new")
    assert store.get(KEY) is None
    store.put(KEY, PARTS)
    assert store.get(KEY) == PARTS
    assert DiskCache(tmp_path / "new").get(KEY) == PARTS
    assert store.keys() == [KEY]
    assert [p.name for p in file_of(store).parent.iterdir()] == [KEY + ".tsr"]
    store.remove(KEY)
    assert store.get(KEY) is None
    store.remove(KEY)


def test_put_replaces(tmp_path: Path):
    store = DiskCache(tmp_path)
    store.put(KEY, {"a": b"1"})
    store.put(KEY, {"b": "2"})
    assert store.get(KEY) == {"b": "2"}


@given(st.data())
def test_any_damage_is_a_miss(data: st.DataObject):
    good = encode(KEY, PARTS)
    place = data.draw(st.integers(0, len(good) - 1))
    flipped = bytearray(good)
    flipped[place] ^= data.draw(st.integers(1, 255))
    assert decode(KEY, bytes(flipped)) is None
    assert decode(KEY, good[:place]) is None
    assert decode(KEY, good) == PARTS


@pytest.mark.parametrize(
    "content", [b"", b"short", b"#!/bin/sh\n" * 100, encode(key_of("other"), PARTS)]
)
def test_foreign_files_are_removed(tmp_path: Path, content: bytes):
    store = DiskCache(tmp_path)
    store.put(KEY, PARTS)
    file_of(store).write_bytes(content)
    assert store.get(KEY) is None
    assert not file_of(store).exists()
    store.put(KEY, PARTS)
    assert store.get(KEY) == PARTS


def test_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    store = DiskCache(tmp_path / "file" / "cache")
    with pytest.warns(CacheWarning, match=r"cannot be kept in .*TESSERA_CACHE_DIR"):
        store.put(KEY, PARTS)
    assert store.get(KEY) == PARTS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(key_of("second"), PARTS)  # one warning is enough
    assert store.get(key_of("second")) == PARTS
    assert store.keys() == sorted([KEY, key_of("second")])
    store.remove(KEY)
    assert store.get(KEY) is None


def test_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = DiskCache(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CacheWarning, match="No space left on device"):
        store.put(KEY, PARTS)
    assert store.get(KEY) == PARTS
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def _sealed(payload: bytes) -> bytes:
    return cache.MAGIC + hashlib.sha256(payload).digest() + payload


@pytest.mark.parametrize(
    "table",
    [b"[]", b"{}", b"no json", b'{"key": 1}', json.dumps({"key": KEY, "parts": [["a", "bytes"]]}).encode(),
     json.dumps({"key": KEY, "parts": 3}).encode(), json.dumps({"key": KEY, "parts": [["a", "json", 5]]}).encode()],
)  # fmt: skip
def test_sound_entries_of_another_version_are_misses(tmp_path: Path, table: bytes):
    store = DiskCache(tmp_path)
    store.put(KEY, PARTS)
    file_of(store).write_bytes(_sealed(len(table).to_bytes(8, "little") + table + b"data"))
    assert store.get(KEY) is None
    file_of(store).parent.mkdir(exist_ok=True)
    file_of(store).write_bytes(_sealed(b""))
    assert store.get(KEY) is None
    store.put(KEY, PARTS)
    assert store.get(KEY) == PARTS


def test_renames_of_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A rename that was done may be reported as failed; an open file may have been replaced elsewhere."""
    real, store = os.replace, DiskCache(tmp_path)

    def told_twice(source: str, target: str) -> None:
        real(source, target)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "replace", told_twice)
    with pytest.warns(CacheWarning):
        store.put(KEY, PARTS)
    assert store.get(KEY) == PARTS
    assert DiskCache(tmp_path).get(KEY) == PARTS

    def stale(path: Path, folder: Path, shared: bool) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(cache, "read_trusted", stale)
    assert DiskCache(tmp_path).get(KEY) is None
    monkeypatch.undo()
    assert DiskCache(tmp_path).get(KEY) == PARTS


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path: Path):
    store = DiskCache(tmp_path)
    store.put(KEY, PARTS)
    for folder in (file_of(store).parent, tmp_path):
        folder.chmod(0o555)
    try:
        other = key_of("other")
        with pytest.warns(CacheWarning, match="TESSERA_CACHE_DIR"):
            store.put(other, PARTS)
        assert store.get(other) == store.get(KEY) == PARTS
    finally:
        for folder in (tmp_path, file_of(store).parent):
            folder.chmod(0o755)


def test_shared_folder_is_second_and_never_changed(tmp_path: Path):
    shared = DiskCache(tmp_path / "shared")
    shared.put(KEY, {"from": "shared"})
    damaged = key_of("damaged")
    DiskCache.path_in(shared.folder, damaged).parent.mkdir(exist_ok=True)
    DiskCache.path_in(shared.folder, damaged).write_bytes(b"junk")
    store = DiskCache(tmp_path / "mine", shared.folder)
    assert store.get(KEY) == {"from": "shared"}
    assert store.get(damaged) is None
    assert DiskCache.path_in(shared.folder, damaged).read_bytes() == b"junk"
    store.put(KEY, {"from": "mine"})
    assert store.get(KEY) == {"from": "mine"}
    assert shared.get(KEY) == {"from": "shared"}


def test_knobs_choose_the_folders(tmp_path: Path):
    knobs.cache.dir = str(tmp_path / "a")
    cache.put(KEY, PARTS)
    assert cache.get(KEY) == PARTS
    knobs.cache.dir = str(tmp_path / "b")
    assert cache.get(KEY) is None
    knobs.cache.shared_dir = str(tmp_path / "a")
    assert cache.get(KEY) == PARTS
    assert cache.disk_cache() is cache.disk_cache()


def _write(folder: str, number: int) -> None:
    store = DiskCache(folder)
    for _ in range(50):
        store.put(KEY, {"data": bytes([number]) * 20_000})


def test_concurrent_writers_never_show_a_torn_entry(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write, args=(str(tmp_path), n)) for n in (1, 2)]
    for process in processes:
        process.start()
    store, seen = DiskCache(tmp_path), 0
    while any(process.is_alive() for process in processes):
        entry = store.get(KEY)
        if entry is not None:
            seen += 1
            assert entry["data"] in (b"\1" * 20_000, b"\2" * 20_000)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert seen > 0


def test_what_json_cannot_say_is_refused(tmp_path: Path):
    with pytest.raises(TypeError):
        DiskCache(tmp_path).put(KEY, {"a": {1, 2}})  # type: ignore[dict-item]


class Colour(enum.IntEnum):
    RED = 1


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def exact(value: Any) -> Any:
    """A form whose repr tells apart all that a key must tell apart."""
    if isinstance(value, dict):
        return ("dict", sorted((k, repr(exact(v))) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [exact(v) for v in value])
    return (type(value).__name__, repr(value))


@given(VALUES, VALUES)
def test_keys_are_equal_exactly_when_values_are(a: Any, b: Any):
    assert (key_of(a) == key_of(b)) == (repr(exact(a)) == repr(exact(b)))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (("ab", "c"), ("a", "bc")),
        ((1,), (True,)),
        ((1,), (1.0,)),
        (("1",), (1,)),
        (((1,), 2), (1, (2,))),
        ((b"a",), ("a",)),
    ],
)
def test_near_values_have_different_keys(a: tuple[Any, ...], b: tuple[Any, ...]):
    assert key_of(*a) != key_of(*b)


def test_order_counts_only_where_it_means_something():
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({3, 1, 2}) == key_of(frozenset({2, 1, 3}))
    assert key_of([1, 2]) != key_of([2, 1])
    assert key_of(Colour.RED) == key_of(1)
    with pytest.raises(TypeError, match="a cache key cannot contain"):
        key_of(object())


def test_toolchain_fingerprint_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "PACKAGE", tmp_path)
    seen: set[str] = set()
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", "")):
        (tmp_path / name).write_text(text)
        cache.source_fingerprint.cache_clear()
        seen.add(cache.source_fingerprint())
    cache.source_fingerprint.cache_clear()
    assert len(seen) == 3
    monkeypatch.undo()
    assert len(cache.toolchain_fingerprint()) == 64
    assert (
        cache.PACKAGE / "ir" / "core.py"
    ).is_file()  # all of tessera, not the cache's own folder
