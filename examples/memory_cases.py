"""What the memory does where certified balls meet: the paper's Figure 2, drawn from settled certificates."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor, nn

from sigmax import CertificateMemory, HalvingSearch, PointCertificate, SettledCertificate, SmoothedClassifier
from sigmax.report.canvas import COLOURS
from sigmax.rounding import format_down, format_nearest

NAMES = ("blue", "orange")
PALE = ("#e6f0f7", "#fbe9df")
HALF_WIDTH = 0.22
FIRST = (-0.5, 0.0)
LEFT = -1.35
# Where the second input lies, and how far the picture reaches to its right.
CASES = (
    ("The same answer", (0.55, 0.25), 1.4),
    ("Another answer, inside the ball", (0.0, 0.3), 0.6),
    ("Another answer, outside the ball", (0.0, 0.655), 0.6),
)


class Band(nn.Module):
    """Orange in a narrow upright band, blue on both sides of it."""

    def forward(self, x: Tensor) -> Tensor:
        """Scores of points (batch, 2)."""
        depth = HALF_WIDTH - x[:, 0].abs()
        return torch.stack([-depth, depth], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where the PNG goes; by default only the answers are printed")
    out = parser.parse_args().out

    search = HalvingSearch(initial=0.1, bounds=(0.05, 0.8), candidates=31, samples=128, pilot=1_000)
    g = SmoothedClassifier(Band().eval(), num_classes=2, sigma=search)
    figure = Figure(figsize=(9.6, 3.7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, width_ratios=[right - LEFT for _, _, right in CASES])
    for (title, second, right), axes in zip(CASES, panels, strict=True):
        x = torch.tensor([FIRST, second])
        certificates = g.certify(x, n=10_000)
        with CertificateMemory(norm=2, fingerprint=g.fingerprint) as memory:
            answers = [memory.settle(*pair) for pair in zip(x, certificates, strict=True)]
        print(f"{title}: alone it {describe(certificates[1])}; {answers[1].rule}: it {describe(answers[1])}")
        draw(axes, x, certificates, answers)
        axes.set(xlim=(LEFT, right), ylim=(-0.9, 1.1))
        axes.set_title(title, fontsize=11)
    if out is not None:
        figure.savefig(out, dpi=125)


def describe(certificate: PointCertificate | SettledCertificate) -> str:
    label = "abstains" if certificate.label is None else f"says {NAMES[certificate.label]}"
    return f"{label}, radius {format_down(certificate.radius)}"


def draw(
    axes: Axes, x: Tensor, certificates: Sequence[PointCertificate], answers: Sequence[SettledCertificate]
) -> None:
    """The balls that sampling certifies, dashed, and those that the memory answers, filled."""
    axes.set_facecolor(PALE[0])
    axes.axvspan(-HALF_WIDTH, HALF_WIDTH, color=PALE[1], lw=0)
    for i, (centre, alone, settled) in enumerate(zip(x.tolist(), certificates, answers, strict=True)):
        assert alone.label is not None, "nothing abstains here"
        assert settled.label is not None, "nor here"
        filled = COLOURS[settled.label]
        axes.add_patch(Circle(centre, settled.radius, facecolor=f"{filled}40", edgecolor=filled, lw=1.5))
        if settled.rule != "kept":
            axes.add_patch(Circle(centre, alone.radius, fill=False, edgecolor=COLOURS[alone.label], lw=1.5, ls="--"))
        axes.plot(*centre, "o", color="black", ms=4)
        aside = 0.05 + (alone.radius if alone.radius < 0.3 else 0.0)  # clear of a ball too small to hold it
        axes.text(centre[0] + aside, centre[1], f"$x_{i + 1}$", va="center")
    point, answer = certificates[1], answers[1]
    axes.set_xlabel(
        f"$x_2$ alone: {NAMES[point.label or 0]}, {format_down(point.radius, 2)}  ($\\sigma^*$ = "
        f"{format_nearest(point.sigma, 2)})\n{answer.rule}: {NAMES[answer.label or 0]}, {format_down(answer.radius, 2)}"
    )
    axes.set(aspect="equal", xticks=[], yticks=[])


if __name__ == "__main__":
    main()
