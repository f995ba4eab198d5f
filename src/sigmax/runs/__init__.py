"""Records are the truth: the request, the run folder and the certificate table."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigmax.runs.folder import MEMORY as MEMORY
    from sigmax.runs.folder import RunFolder as RunFolder
    from sigmax.runs.spec import CertificationSpec as CertificationSpec
    from sigmax.runs.spec import ExpertReference as ExpertReference
    from sigmax.runs.spec import Found as Found
    from sigmax.runs.spec import RouterReference as RouterReference
    from sigmax.runs.spec import Shard as Shard
    from sigmax.runs.spec import read_spec as read_spec
    from sigmax.runs.table import CONFIG as CONFIG
    from sigmax.runs.table import TABLE as TABLE
    from sigmax.runs.table import Run as Run
    from sigmax.runs.table import format_row as format_row
    from sigmax.runs.table import read_run as read_run
    from sigmax.runs.table import read_runs as read_runs
    from sigmax.runs.table import read_table as read_table
    from sigmax.table import ABSTAIN as ABSTAIN
    from sigmax.table import CertificateTable as CertificateTable


def __getattr__(name: str) -> Any:
    # Imported when first used, the table first: it can be read without torch, a request cannot.
    for module in () if name.startswith("_") else ("table", "spec", "folder"):
        home = import_module(f"{__name__}.{module}")
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
