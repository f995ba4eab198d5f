"""Files: written so that an interruption leaves the old content or the new, and modules of the user's own."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from filelock import FileLock, Timeout

from sigmax.errors import RecordError


def cache_folder() -> Path:
    """Where this package keeps what it can find out again: $SIGMAX_CACHE, else the user's cache folder."""
    if os.environ.get("SIGMAX_CACHE"):
        return Path(os.environ["SIGMAX_CACHE"]).expanduser()
    import pooch

    return Path(pooch.os_cache("sigmax"))


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside, flush to the disk, rename; on the disk, too, before anything that is written later."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def lock_folder(folder: Path) -> FileLock:
    """Make the folder and become its only writer, until the lock is released."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise RecordError(f"expected to be the only writer of {folder}, got another process; wait for it") from None
    except OSError as error:
        raise RecordError(f"expected a folder for the run, got {folder}: {error}") from error
    return lock


def import_own(module: str) -> ModuleType:
    """A module of the user's own, found also beside the command, as `python -m` finds it."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(module)
