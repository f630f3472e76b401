"""Opens pages in a headless browser, for tests of what they show."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None,
    reason=f"no browser: put {', '.join(NAMES[:-1])} or {NAMES[-1]} on PATH (apt-get install chromium)",
)
SIZE = (1200, 900)


def browse(path: Path, *options: str, behind: str = "") -> str:
    """What Chromium says of a page that it opens from disk, without a network; `behind` is a query or a fragment."""
    assert BROWSER is not None
    with tempfile.TemporaryDirectory() as profile:
        command = [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={SIZE[0]},{SIZE[1]}", "--host-resolver-rules=MAP * ~NOTFOUND", *options,
            f"{path.as_uri()}{behind}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def brightness(png: bytes) -> float:
    """The mean of the first row's bytes, which filters of PNG leave alone or take from the left neighbour."""
    data, at, rows = b"", 8, b""
    width = height = channels = 0
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack_from(">IIBB", body)
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            data += body
        at += 12 + length
    assert (width, height) == SIZE
    rows = zlib.decompress(data)
    line, last = rows[1 : 1 + width * channels], bytearray(channels)
    found: list[int] = []
    for i in range(0, len(line), channels):
        for c in range(channels):
            value = line[i + c] + (
                last[c] if rows[0] in (1, 4) else last[c] // 2 if rows[0] == 3 else 0
            )
            last[c] = value & 255
        found += last[:3]
    return sum(found) / len(found)
