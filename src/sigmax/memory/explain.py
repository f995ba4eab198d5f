"""Why the memory answers what it answers: the entries that decided, in the order in which they were settled."""

from dataclasses import dataclass
from typing import Literal, final

from sigmax.certificate import SettledCertificate
from sigmax.memory.balls import Neighbour, depth, room, settle
from sigmax.memory.view import Input, View, as_array

_NO_RECALL = -1.0  # below every alpha: an entry with the same input is a neighbour like others


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """An entry that took part in an answer."""

    id: int
    label: int
    radius: float
    distance: float  # from the input, rounded down
    effect: Literal["contains", "cuts"]
    limit: float  # the depth of the input in its ball, or the room up to it; rounded down
    is_decisive: bool  # whether the radius of the answer follows from it


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An answer, and what it follows from."""

    answer: SettledCertificate | None  # None: sampling would have to say
    entry: int | None  # the id of the answer; None: this input has not been settled
    influences: tuple[Influence, ...]  # settled before it, oldest first


def explain(view: View, x: Input) -> Explanation:
    """What the entries say of one input; nothing is stored."""
    pixels = as_array(x[None])
    view.refresh()
    (asked,) = view.questions(pixels, [None], [1.0])
    entry = asked.neighbours[-1].id if asked.answer is not None else None
    answer = asked.answer or settle(None, asked.neighbours, alpha=1.0)
    point = asked.answer.point if asked.answer is not None else None
    (whole,) = view.questions(pixels, [point], [_NO_RECALL])
    before = [neighbour for neighbour in whole.neighbours if entry is None or neighbour.id < entry]
    reach = point.radius if point is not None else 0.0
    influences = [
        _influence(neighbour, answer)
        for neighbour in before
        if neighbour.is_home or (point is not None and neighbour.ball.label != point.label and room(neighbour) < reach)
    ]
    return Explanation(answer=answer, entry=entry, influences=tuple(influences))


def _influence(neighbour: Neighbour, answer: SettledCertificate | None) -> Influence:
    limit = depth(neighbour) if neighbour.is_home else max(0.0, room(neighbour))
    rule = answer.rule if answer is not None else None
    return Influence(
        id=neighbour.id,
        label=neighbour.ball.label,
        radius=neighbour.ball.radius,
        distance=neighbour.low,
        effect="contains" if neighbour.is_home else "cuts",
        limit=limit,
        is_decisive=answer is not None
        and answer.radius == limit
        and rule == ("inherited" if neighbour.is_home else "truncated"),
    )
