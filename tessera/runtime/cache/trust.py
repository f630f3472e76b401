"""Decides whose files are run: compiled kernels come only from folders and files that no other user could have
written.

The checksum of a cached kernel detects damage, not malice: who can write a file can write its checksum. So a folder
and each file that is read must belong to this user or to root and must not be world-writable. In a sticky
world-writable folder like /tmp, a subfolder of this user is used. The same holds for root: who owns a folder decides
what root would run from it. The shared folder may belong to anybody; its owner is trusted with its content.
TESSERA_CACHE_TRUST=1 turns all these checks off.
"""

from __future__ import annotations

import atexit
import os
import stat
from functools import cache
from pathlib import Path

from tessera.config import knobs

ROOT = 0  # the user id of the superuser


def me() -> int | None:
    """Return the effective user of this process; None on systems without user IDs."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def why_not(folder: Path, shared: bool = False) -> str | None:
    """Return why a cache folder cannot be trusted; None if it can be, or does not exist yet."""
    user = me()
    if user is None or knobs.cache.trust:
        return None
    try:
        about = os.stat(folder)
    except OSError:
        return None  # nothing is read from a missing folder
    if about.st_mode & stat.S_IWOTH:
        return "every user may write there"
    if not shared and about.st_uid not in (user, ROOT):
        return f"it belongs to another user ({_name_of(about.st_uid)})"
    return None


def own_part(folder: Path) -> Path | None:
    """Return this user's subfolder of a sticky world-writable folder, made if missing; None elsewhere or if taken."""
    user, shared = me(), stat.S_ISVTX | stat.S_IWOTH
    part = folder / f"tessera-{user}"
    try:
        about = os.stat(folder)
        if (
            knobs.cache.trust
            or about.st_mode & shared != shared
            or about.st_uid not in (user, ROOT)
        ):
            return None
        part.mkdir(mode=0o700, exist_ok=True)
        made = os.lstat(part)  # a symbolic link could lead to somebody else's folder
    except OSError:
        return None
    mine = stat.S_ISDIR(made.st_mode) and made.st_uid == user and not made.st_mode & stat.S_IWOTH
    return part if mine else None


def _name_of(user: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(user).pw_name
    except (ImportError, KeyError):
        return str(user)


def read_trusted(path: Path, folder: Path, shared: bool = False) -> bytes | None:
    """Return the content of a file below a trusted folder; None if it is another user's or world-writable. OSError if
    it cannot be read."""
    with open(path, "rb") as file:
        user = me()
        if user is not None and not knobs.cache.trust:
            about = os.fstat(file.fileno())
            owners = {user, ROOT, *([os.stat(folder).st_uid] if shared else [])}
            if about.st_uid not in owners or about.st_mode & stat.S_IWOTH:
                return None
        return file.read()


@cache
def private_folder() -> Path:
    """Return a new folder of this process alone, removed when the process ends."""
    import tempfile

    made = tempfile.mkdtemp(prefix="tessera-cache-")
    atexit.register(_remove, made, os.getpid())
    return Path(made)


def _remove(folder: str, owner: int) -> None:
    import shutil

    if os.getpid() == owner:  # not a forked child
        shutil.rmtree(folder, ignore_errors=True)
