"""Training objectives by name. A file in this package that defines an `Objective` adds one."""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from sigmax.plain import make_named
from sigmax.train.evaluation import Network
from sigmax.train.objectives.objective import Batch, Objective, Outcome

__all__ = ["Batch", "Network", "Objective", "Outcome", "make_objective"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def make_objective(method: str, options: Mapping[str, Any] | None = None) -> Objective:
    """The objective of this name, or of `package.module:Class`; options may be texts, as a command line gives them."""
    return make_named(Objective, method, options or {})  # type: ignore[type-abstract]
