"""Where the work runs."""

from sigmax.engine.data import check_data
from sigmax.engine.local import Tracker, batch_of, certify_source
from sigmax.engine.notes import paper_method, run_notes

__all__ = ["Tracker", "batch_of", "certify_source", "check_data", "paper_method", "run_notes"]
