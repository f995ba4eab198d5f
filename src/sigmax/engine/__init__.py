"""Where the work runs: a request is prepared, executed block by block, settled and recorded in order."""

from sigmax.engine.certify import Tracker, certify
from sigmax.engine.prepare import Prepared, prepare
from sigmax.engine.replay import Replay, replay

__all__ = ["Prepared", "Replay", "Tracker", "certify", "prepare", "replay"]
