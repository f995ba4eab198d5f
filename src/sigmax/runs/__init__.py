"""Records are the truth: the request, the run folder and the certificate table."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigmax.runs.folder import MEMORY, RunFolder
    from sigmax.runs.spec import CertificationSpec, Found, read_spec
    from sigmax.runs.table import (
        ABSTAIN,
        CONFIG,
        TABLE,
        CertificateTable,
        Run,
        format_row,
        read_run,
        read_runs,
        read_table,
    )

# Names are imported when first used: a table can be read without torch, a request cannot.
_HOME = {
    **dict.fromkeys(("MEMORY", "RunFolder"), "folder"),
    **dict.fromkeys(("CertificationSpec", "Found", "read_spec"), "spec"),
    **dict.fromkeys(
        ("ABSTAIN", "CONFIG", "TABLE", "CertificateTable", "Run", "format_row", "read_run", "read_runs", "read_table"),
        "table",
    ),
}
__all__ = [
    "ABSTAIN",
    "CONFIG",
    "MEMORY",
    "TABLE",
    "CertificateTable",
    "CertificationSpec",
    "Found",
    "Run",
    "RunFolder",
    "format_row",
    "read_run",
    "read_runs",
    "read_spec",
    "read_table",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
