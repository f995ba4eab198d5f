"""The record of how much the settled answers of a run depend on the order of its inputs."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from sigmax.errors import InvalidInputError, RecordError
from sigmax.files import write_atomically
from sigmax.plain import from_plain

ORDERS = "orders.json"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """How many of a run's inputs ever got another answer than in the order of the run."""

    inputs: int
    orders: int
    near: int  # inputs whose ball may meet another ball; all others never differ
    answers: int  # another label or radius
    labels: int
    radii: int
    largest: float  # change of a radius

    def write(self, run: Path) -> None:
        """Write it into a run folder, where reports find it."""
        write_atomically(run / ORDERS, (json.dumps(asdict(self), indent=2) + "\n").encode())


def read_orders(run: Path) -> Orders | None:
    """The record in a run folder; None if there is none."""
    if not (run / ORDERS).exists():
        return None
    try:
        return from_plain(Orders, json.loads((run / ORDERS).read_text()))
    except (OSError, ValueError, InvalidInputError) as error:
        raise RecordError(f"{run / ORDERS}: expected a record of orders, got: {error}; remove it") from error
