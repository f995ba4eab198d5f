"""Where the work runs: a request is prepared, executed block by block, settled and recorded in order."""

from sigmax.engine.base import Engine
from sigmax.engine.certify import Tracker, certify
from sigmax.engine.local import LocalEngine
from sigmax.engine.prepare import Prepared, prepare
from sigmax.engine.replay import Replay, replay
from sigmax.engine.shards import merge_shards

__all__ = ["Engine", "LocalEngine", "Prepared", "Replay", "Tracker", "certify", "merge_shards", "prepare", "replay"]
