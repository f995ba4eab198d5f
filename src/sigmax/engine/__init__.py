"""Where the work runs."""

from sigmax.engine.local import Tracker, certify_source

__all__ = ["Tracker", "certify_source"]
