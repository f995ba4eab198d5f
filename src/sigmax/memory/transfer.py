"""Copies of memories, entry for entry and byte for byte, between any two places."""

from collections.abc import Callable

from sigmax.memory.ledger import Place
from sigmax.memory.places import existing_owner, ledger_kind


def copy_memory(source: Place, target: Place, *, on_progress: Callable[[int], None] | None = None) -> int:
    """Copy all entries into a live memory at `target`, with their ids; return how many there are.

    The target must be new, or hold the first entries of the source: an interrupted copy goes on where it ended.
    """
    owner = existing_owner(source)
    old = ledger_kind(source)(source, owner)
    try:
        new = ledger_kind(target)(target, owner)
        try:
            return new.copy_from(old, on_progress=on_progress)
        finally:
            new.close()
    finally:
        old.close()
