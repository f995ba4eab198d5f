"""What `certify` returns: the certificates in the order of the inputs, with accuracy, ACR, tables and plots."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final, overload

import numpy as np
from torch import Tensor

from sigmax import metrics
from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError, SigmaxError
from sigmax.inputs import Inputs, read_batches, regroup
from sigmax.rounding import format_down, format_nearest, format_whole
from sigmax.table import ABSTAIN, CertificateTable, certificate_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

A = TypeVar("A", bound=PointCertificate | SettledCertificate, covariant=True)
_SHOWN = 10  # rows in a notebook
_UNKNOWN = -2  # stands for a true class that nobody said: no answer equals it


@final
class Certificates(Sequence[A], Generic[A]):
    """Certificates in the order of their inputs. If the true labels are known, also certified accuracy and ACR.

    Args:
        certificates: Those of `certify`, or the answers of a memory.
        labels: The true class of each input; None: unknown.
        indices: The index of each input in its data set; by default 0, 1, 2, …
    """

    def __init__(
        self, certificates: Iterable[A], *, labels: Iterable[int] | None = None, indices: Iterable[int] | None = None
    ) -> None:
        self._answers = tuple(certificates)
        self.labels = None if labels is None else tuple(int(label) for label in labels)
        self.indices = tuple(range(len(self._answers)) if indices is None else (int(index) for index in indices))
        for name, found in (("label", self.labels), ("index", self.indices)):
            if found is not None and len(found) != len(self._answers):
                raise InvalidInputError(f"expected one {name} per certificate, got {len(found)} for {len(self)}")

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, place: int) -> A: ...
    @overload
    def __getitem__(self, place: slice) -> "Certificates[A]": ...
    def __getitem__(self, place: int | slice) -> "A | Certificates[A]":
        """One certificate, or some of them with their labels."""
        if isinstance(place, slice):
            labels = None if self.labels is None else self.labels[place]
            return Certificates(self._answers[place], labels=labels, indices=self.indices[place])
        return self._answers[place]

    def __eq__(self, other: object) -> bool:
        """Whether both have the same certificates in the same order, as for lists."""
        if not isinstance(other, Certificates | list | tuple):
            return NotImplemented
        return self._answers == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        """The certificates of both as one list."""
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self]

    @cached_property
    def table(self) -> CertificateTable:
        """The certificates in columns, for the functions of `sigmax.metrics`. Unknown labels are -2 there."""
        labels = [_UNKNOWN] * len(self) if self.labels is None else self.labels
        return certificate_table(self._answers, labels, idx=self.indices)

    def accuracy(self, radius: float = 0.0) -> float:
        """Certified accuracy: the share of inputs answered correctly with at least this radius."""
        self._check_labels()
        return float(metrics.certified_accuracy(self.table, radius))

    @property
    def acr(self) -> float:
        """Average certified radius over all inputs; wrong answers and abstentions count as 0."""
        self._check_labels()
        return metrics.average_certified_radius(self.table)

    def _check_labels(self) -> None:
        if self.labels is None:
            raise InvalidInputError(
                "expected the true classes, got none; pass (x, labels), or a data set or loader with labels, to certify"
            )

    def to_pandas(self) -> "pd.DataFrame":
        """A data frame with a row per input, in the columns of `certificates.tsv`; an abstention is -1."""
        try:
            import pandas as pd
        except ImportError:
            raise SigmaxError("expected pandas to be installed, got none; pip install pandas") from None
        table = self.table
        columns: dict[str, Any] = {"idx": table.idx}
        if self.labels is not None:
            columns["label"] = table.label
        columns |= {"predict": table.predict, "radius": table.radius}
        if self.labels is not None:
            columns["correct"] = table.is_correct
        proofs = [answer.proof if isinstance(answer, SettledCertificate) else answer for answer in self]
        columns |= {name: [getattr(proof, name) for proof in proofs] for name in ("sigma", "p_lower", "n", "alpha")}
        return pd.DataFrame(columns | {"rule": table.rule})

    def plot(self, axes: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw certified accuracy over the radius; without labels, the share of inputs that are certified.

        Args:
            axes: Where to draw; by default the current axes of pyplot, which a notebook shows.
            style: Style of the line, as for matplotlib's `step`.
        """
        if axes is None:
            from matplotlib import pyplot as plt

            axes = plt.gca()
        table = self.table
        is_counted = table.predict != ABSTAIN if self.labels is None else table.is_correct
        reached = np.sort(table.radius[is_counted])
        share = np.arange(len(reached), 0, -1) / max(len(self), 1)
        # A step down after each radius, from what is certified at 0.
        axes.step([0.0, *reached, *reached[-1:]], [*share[:1], *share, 0.0][: len(reached) + 2], where="pre", **style)
        name = "inputs certified" if self.labels is None else "certified accuracy"
        axes.set(xlabel=rf"$\ell_{table.norm}$ radius", ylabel=name, xlim=(0, None), ylim=(0, 1))
        return axes

    def __repr__(self) -> str:
        return f"<{self._summary()}>"

    def _summary(self) -> str:
        table, kind = self.table, metrics.kind_of_answers(self.table)
        parts = [f"{len(self):,} {kind} certificate{'' if len(self) == 1 else 's'}"]
        if self.labels is not None:
            radii = metrics.common_radii([table])[:4]
            at = ", ".join(f"{format_nearest(self.accuracy(r))} at {format_whole(r)}" for r in radii)
            parts += [f"certified accuracy {at}", f"ACR {format_nearest(self.acr)}"]
        elif len(self):
            parts.append(f"mean radius {format_nearest(float(table.radius.mean()))}")
        abstained = int((table.predict == ABSTAIN).sum())
        return "; ".join([*parts, f"{abstained} abstained"] if abstained else parts)

    def _repr_html_(self) -> str:
        """The summary and the first rows, for notebooks."""
        table = self.table
        names = ["input", *(["label"] if self.labels is not None else []), "answer", "radius", "sigma"]
        rows = []
        for i in range(min(len(self), _SHOWN)):
            answer = "abstains" if table.predict[i] == ABSTAIN else str(table.predict[i])
            truth = [] if self.labels is None else [str(table.label[i])]
            numbers = [format_down(float(table.radius[i])), format_nearest(float(table.sigma[i]))]
            rows.append([str(table.idx[i]), *truth, answer, *numbers])
        head = "".join(f"<th>{name}</th>" for name in names)
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        more = f"<p>… and {len(self) - _SHOWN:,} more</p>" if len(self) > _SHOWN else ""
        return f"<p>{self._summary()}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def gather(
    inputs: Inputs,
    indices: Sequence[int] | None,
    *,
    size: Callable[[Tensor], int],
    certify: Callable[[Tensor, Sequence[int]], list[PointCertificate]],
) -> Certificates[PointCertificate]:
    """Certify inputs of any kind in groups of one size. Without `indices`, inputs are numbered across batches."""
    points: list[PointCertificate] = []
    labels: list[int] | None = []
    for x, truth in regroup(read_batches(inputs), size):
        start, end = len(points), len(points) + len(x)
        points += certify(x, range(start, end) if indices is None else indices[start:end])
        labels = None if labels is None or truth is None else labels + truth
    if indices is not None and len(indices) != len(points):
        raise InvalidInputError(f"expected one index per input, got {len(indices)} for {len(points)} inputs")
    return Certificates(points, labels=labels if points else None, indices=indices)
