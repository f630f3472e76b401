"""Opens pages in a headless browser, for tests of what they show."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from pathlib import Path

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SIZE = (1200, 900)


def browse(path: Path, *options: str, fragment: str = "") -> str:
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={path.parent}/profile", f"--window-size={SIZE[0]},{SIZE[1]}", *options, f"file://{path}{fragment}",
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
