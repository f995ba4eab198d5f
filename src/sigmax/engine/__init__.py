"""Where the work runs."""

from sigmax.engine.classes import check_classes
from sigmax.engine.local import Tracker, batch_of, certify_source
from sigmax.engine.notes import paper_method, run_notes

__all__ = ["Tracker", "batch_of", "certify_source", "check_classes", "paper_method", "run_notes"]
