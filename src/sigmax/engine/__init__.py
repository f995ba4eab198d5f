"""Where the work runs."""

from sigmax.engine.local import Tracker, batch_of, certify_source
from sigmax.engine.notes import paper_method, run_notes

__all__ = ["Tracker", "batch_of", "certify_source", "paper_method", "run_notes"]
