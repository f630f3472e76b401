"""One process of the cache torture test: read, check, write, corrupt entries of one folder until it is killed.

    python cache_torture.py FOLDER SEED SECONDS

Ends with code 0, or with 3 and a message if the cache ever gave a wrong entry.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from pathlib import Path

from tessera.runtime.cache.disk import DiskCache, key_of

KEYS = 40


def entry_of(number: int) -> dict[str, object]:
    """What is right for a key: large enough that a write is no single system call."""
    blob = bytes((number * 31 + i) & 255 for i in range(256)) * (40 + 97 * number)
    return {
        "object": blob,
        "text": f"kernel {number}\n" * 300,
        "facts": {"number": number, "list": [1, None, "x"]},
    }


def damage(folder: Path, rng: random.Random) -> None:
    """Truncate, overwrite, append to, empty or remove a random entry, as crashes and failing disks do."""
    files = list(folder.glob("??/*"))
    if not files:
        return
    path = rng.choice(files)
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        kind = rng.randrange(5)
        if kind == 0:
            path.unlink()
        elif kind == 1:
            with path.open("r+b") as file:
                file.truncate(rng.randrange(size + 1))
        elif kind == 2:
            with path.open("r+b") as file:
                file.seek(rng.randrange(max(1, size)))
                file.write(rng.randbytes(rng.randrange(1, 64)))
        elif kind == 3:
            path.write_bytes(b"")
        else:
            with path.open("ab") as file:
                file.write(b"more")


def main(folder: str, seed: str, seconds: str) -> int:
    rng = random.Random(int(seed))
    cache = DiskCache(folder)
    keys = [key_of("torture", number) for number in range(KEYS)]
    right = [entry_of(number) for number in range(KEYS)]
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        number = rng.randrange(KEYS)
        found = cache.get(keys[number])
        if found is not None and found != right[number]:
            print(f"wrong entry for key {number}", file=sys.stderr)
            return 3
        if found is None or rng.random() < 0.2:
            cache.put(keys[number], right[number])  # type: ignore[arg-type]
        if rng.random() < 0.1:
            damage(Path(folder), rng)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
