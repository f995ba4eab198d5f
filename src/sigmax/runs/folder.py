"""Folders that survive interruptions: one guard for "begun with other settings", and the folder of a certification."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

from sigmax.errors import RecordError
from sigmax.files import lock_folder, write_atomically
from sigmax.runs.spec import CertificationSpec, read_spec
from sigmax.runs.table import CONFIG, HEADER, TABLE, read_table

MEMORY = "memory.db"
_SHOWN = 5  # changed settings that a message lists


def check_same(
    old: Mapping[str, Any], new: Mapping[str, Any], place: Path | str, *, advice: str = "choose another folder"
) -> None:
    """The one guard of resuming: refuse settings, as plain values, that differ from those `place` was begun with."""
    was, now = _flat(old), _flat(new)
    changed = [key for key in sorted({*was, *now}) if was.get(key) != now.get(key)]
    if changed:
        said = ", ".join(f"{key}={now.get(key)!r} (was {was.get(key)!r})" for key in changed[:_SHOWN])
        said += f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise RecordError(f"expected the settings that {place} was begun with, got {said}; {advice}")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


@final
class RunFolder:
    """A run on disk: its request, its table so far, and the only process that writes to it.

    Interrupted anywhere, it is resumed by opening it again with the same request: a line that was cut off is removed,
    and the rest is appended to. `on_begin` is called before a run is begun here, also in place of one that has no rows;
    it may refuse.
    """

    def __init__(
        self, path: Path, spec: CertificationSpec, *, resume: bool = False, on_begin: Callable[[], None] | None = None
    ) -> None:
        self.path = path
        self._lock = lock_folder(path)
        try:
            self.rows = self._open_table()
            self._open_config(spec, resume, on_begin)
        except OSError as error:
            self._lock.release()
            raise RecordError(f"expected to read and write {path}, got: {error}") from error
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def table(self) -> Path:
        """The certificate table."""
        return self.path / TABLE

    def check_rows(self, indices: Sequence[int]) -> int:
        """How many rows there are, all of them of these inputs in this order; refuse any others."""
        found = read_table(self.path).idx.tolist() if self.rows else []
        if len(found) != self.rows or found[: len(indices)] != list(indices)[: len(found)]:
            raise RecordError(
                f"expected {self.table} to begin with the inputs {_few(indices)}, got {_few(found)}; "
                "use the --skip of this run, or choose another folder"
            )
        return self.rows

    def append(self, line: str) -> None:
        """Append one line of the table, durably."""
        try:
            with self.table.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(
                f"expected to append to {self.table}, got: {error}; nothing is lost: continue with --resume"
            ) from error
        self.rows += 1

    def _open_config(self, spec: CertificationSpec, resume: bool, on_begin: Callable[[], None] | None) -> None:
        path = self.path / CONFIG
        old = read_spec(path) if path.exists() else None
        if old is None and self.rows:
            raise RecordError(f"expected {CONFIG} beside {self.table}, got none; choose another folder")
        # A run that failed before its first row is not in the way of the corrected one.
        if old is None or (not self.rows and old.decisive() != spec.decisive()):
            if on_begin is not None:
                on_begin()
            write_atomically(path, spec.to_json().encode())
            return
        if self.rows and not resume:
            raise RecordError(f"expected a new folder, got {self.path} with a run in it; add --resume to continue it")
        check_same(old.decisive(), spec.decisive(), self.path)

    def _open_table(self) -> int:
        """Remove a line that was cut off; return how many rows there are."""
        if not self.table.exists():
            write_atomically(self.table, HEADER.encode())
            return 0
        content = self.table.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole.startswith(HEADER.encode()):
            raise RecordError(f"{self.table}: expected a table of this version, got another first line")
        if len(whole) < len(content):
            with self.table.open("r+b") as file:
                file.truncate(len(whole))
                os.fsync(file.fileno())
        return whole.count(b"\n") - 1


def _few(indices: Sequence[int]) -> str:
    shown = ", ".join(str(index) for index in indices[:3])
    return f"{shown}, …" if len(indices) > 3 else shown or "none"
