"""Where the work runs."""

from sigmax.engine.local import certify_source

__all__ = ["certify_source"]
