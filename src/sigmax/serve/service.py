"""What a service needs to know, and questions as it asks them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import NDArray

from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.lattice import to_pixels
from sigmax.memory import Memory
from sigmax.rounding import format_down
from sigmax.serve.answer import Answer, Question, Watcher
from sigmax.serve.desk import Desk
from sigmax.serve.protocol import output_names
from sigmax.serve.tokens import Role, Tokens


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request may take."""

    n: int = 100_000  # samples of a question
    images: int = 64  # of a request
    body_bytes: int = 16 * 2**20
    body_seconds: float = 20.0  # to send a body in


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A certified classifier, ready to be asked.

    Args:
        name: The name of the model in addresses.
        shape: Of an input.
        class_names: Of its labels, as far as known.
        desk: Answers questions.
        memory: The memory of the desk.
        tokens: Who may ask.
        limits: What a request may take.
    """

    name: str
    shape: tuple[int, ...]
    class_names: tuple[str, ...] = ()
    desk: Desk
    memory: Memory
    tokens: Tokens
    limits: Limits

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Answer what was taken, then release the memory. Closing twice is allowed."""
        self.desk.close()
        self.memory.close()

    @property
    def role(self) -> Role:
        """What a token must allow to ask: a live memory stores every answer."""
        return Role.SETTLE if self.memory.digest is None else Role.ASK

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the model."""
        experts = self.desk.answerer.smoothed.experts
        return output_names(takes_level=any(expert.classifier.takes_level for expert in experts))

    def about(self) -> dict[str, Any]:
        """What the page shows of the service."""
        smoothed, budget = self.desk.answerer.smoothed, self.desk.answerer.budget
        return {
            "model": self.name,
            "shape": list(self.shape),
            "classes": list(self.class_names),
            "norm": smoothed.noise.norm,
            "noise": smoothed.noise.name,
            "n": budget.n,
            "most_n": self.limits.n,
            "alpha": budget.alpha,
            "entries": len(self.memory),
            "digest": self.memory.digest,
        }

    def nearest(self, x: torch.Tensor) -> list[dict[str, Any]]:
        """The nearest entries of the memory, for the page; distances and radii are text, rounded down."""
        return [
            {
                "id": entry.id,
                "label": entry.label,
                "distance": format_down(entry.distance),
                "radius": format_down(entry.radius),
                "rule": entry.rule,
            }
            for entry in self.memory.nearest(x)
        ]

    def questions(
        self,
        images: NDArray[np.float32],
        *,
        n: int | None,
        alpha: float | None,
        deadline: float | None,
        on_proved: Watcher | None = None,
    ) -> list[Question]:
        """Questions about images (batch, *dims), checked: one that fails later would fail others in its batch."""
        budget = _asked(self.desk.answerer.budget, n, alpha)
        if budget.n > self.limits.n:
            raise InvalidInputError(f"expected n <= {self.limits.n}, got n={budget.n}; this service allows no more")
        if not np.isfinite(images).all():
            raise InvalidInputError("expected finite numbers, got NaN or infinity; send pixels between 0 and 1")
        x, levels = torch.from_numpy(images), self.desk.answerer.smoothed.levels
        if levels is not None:
            to_pixels(x, levels)
        until = None if deadline is None else time.monotonic() + deadline
        return [Question(x=each, budget=budget, deadline=until, on_proved=on_proved) for each in x]


@lru_cache(maxsize=1_024)  # checking a budget takes as long as a lookup
def _asked(usual: Budget, n: int | None, alpha: float | None) -> Budget:
    """The usual budget, with what a question says otherwise."""
    return replace(usual, n=usual.n if n is None else n, alpha=usual.alpha if alpha is None else alpha, anytime=True)


def proved_fields(point: PointCertificate) -> dict[str, Any]:
    """What has been proved so far, for the page. The radius is also given as text, rounded down."""
    return {
        "label": point.label,
        "radius": point.radius,
        "shown": format_down(point.radius),
        "sigma": point.sigma,
        "p_lower": point.p_lower,
        "n": point.n,
    }


def answer_fields(answer: Answer, names: Sequence[str]) -> dict[str, Any]:
    """An answer as JSON."""
    is_named = answer.label is not None and answer.label < len(names)
    return {
        "label": answer.label,
        "class": names[answer.label] if is_named and answer.label is not None else None,
        "radius": answer.radius,
        "shown": format_down(answer.radius),
        "sigma": answer.sigma,
        "alpha": answer.alpha,
        "p_lower": answer.p_lower,
        "n": answer.n,
        "tau": answer.tau,
        "expert": answer.expert,
        "rule": answer.rule,
        "recalled": answer.is_recalled,
        "memory": answer.digest,
    }
