"""Where the work runs."""

from sigmax.engine.local import Tracker, certify_source
from sigmax.engine.notes import paper_method, run_notes

__all__ = ["Tracker", "certify_source", "paper_method", "run_notes"]
