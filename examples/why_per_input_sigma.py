"""Why each input wants its own sigma: the paper's Figure 1, drawn from certificates in the plane."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray
from torch import Tensor, nn

from sigmax import HalvingSearch, PointCertificate, SmoothedClassifier
from sigmax.report.canvas import COLOURS
from sigmax.rounding import format_down, format_nearest
from sigmax.sampling import count_classes
from sigmax.streams import Stage, random_stream

BLUE, ORANGE, GREEN = range(3)
NAMES = ("blue", "orange", "green")
PALE = ListedColormap(["#dbe9f3", "#f9e4d7", "#d8eee6"])

# Far from every other class; on a tongue of orange; in a narrow finger of green.
INPUTS = torch.tensor([[-2.4, 0.0], [0.5, 0.95], [0.4, -0.95]])
TRUTH = (BLUE, ORANGE, GREEN)
STORIES = ("is certified too little", "loses confidence", "is misclassified")
LABELS = ((-2.95, -0.5), (-0.5, 1.95), (0.75, -0.95))  # where the text of each input stands
WINDOW = (-4.5, 2.9, -2.6, 2.6)
ONE_SIGMA = 0.4
SIGMAS = np.geomspace(0.05, 1.6, 31)
SAMPLES = 10_000
MARKERS = (("D", 7), ("*", 14))  # one sigma; its own


class Plane(nn.Module):
    """Three classes in the plane; the score of a class is how deep a point lies in its region."""

    def forward(self, x: Tensor) -> Tensor:
        """Scores of points (batch, 2)."""
        ends = x.new_tensor([[[2.0, 0.95], [0.3, 0.95]], [[0.4, -2.6], [0.4, -0.5]]])
        start, along = ends[:, 0], ends[:, 1] - ends[:, 0]  # 2 2
        offset = x[:, None] - start  # batch 2 2
        share = ((offset * along).sum(-1) / along.square().sum(-1)).clamp(0, 1)  # batch 2
        distance = (offset - share[..., None] * along).norm(dim=-1)  # batch 2: to the middle of tongue and finger
        orange = torch.maximum(x[:, 0] - 2.0, 0.5 - distance[:, 0])
        green = torch.maximum(-2.1 - x[:, 1], 0.2 - distance[:, 1])
        return 10 * torch.stack([torch.zeros_like(orange), orange, green], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where the PNG goes; by default only the numbers are printed")
    out = parser.parse_args().out

    fixed = SmoothedClassifier(Plane().eval(), num_classes=3, sigma=ONE_SIGMA)
    # The class is the prediction under sigma0: a small one, so that the finger is not lost in its own noise.
    search = HalvingSearch(initial=0.1, bounds=(0.05, 1.6), candidates=31, samples=128, pilot=1_000)
    per_input = SmoothedClassifier(fixed.classifier.model, num_classes=3, sigma=search)
    before = fixed.certify(INPUTS, n=SAMPLES)
    after = per_input.certify(INPUTS, n=SAMPLES)
    for i, truth in enumerate(TRUTH):
        print(f"x{i + 1}, truly {NAMES[truth]}: {describe(before[i])}; with its own {describe(after[i])}")
    if out is not None:
        draw(fixed, before, after, out)


def describe(certificate: PointCertificate) -> str:
    label = "abstains" if certificate.label is None else f"says {NAMES[certificate.label]}"
    sigma, p_lower = format_nearest(certificate.sigma, 2), format_down(certificate.p_lower, 3)
    return f"sigma {sigma} it {label}, p at least {p_lower}, radius {format_down(certificate.radius)}"


def draw(
    fixed: SmoothedClassifier, before: Sequence[PointCertificate], after: Sequence[PointCertificate], path: Path
) -> None:
    figure = Figure(figsize=(9.6, 7.9), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = np.ravel(np.asarray(figure.subfigures(2, 1, height_ratios=(1, 1))))
    left, right = upper.subplots(1, 2)
    draw_map(left, fixed, before)
    draw_boundary(left, fixed)
    left.set_title(f"One $\\sigma$ = {ONE_SIGMA} for all inputs", fontsize=11, pad=8)
    draw_map(right, fixed, after)
    right.set_title("Per-input $\\sigma^*$", fontsize=11, pad=8)
    draw_curves(lower.subplots(2, 3, sharex=True), fixed, before, after)
    figure.savefig(path, dpi=125)


def draw_map(axes: Axes, fixed: SmoothedClassifier, certificates: Sequence[PointCertificate]) -> None:
    """The regions of the base classifier, and the certified ball of each input in the colour of its answer."""
    x, y, points = grid(500)
    regions = fixed.classifier.labels(points).reshape(len(y), len(x))
    axes.pcolormesh(x, y, regions, cmap=PALE, vmin=0, vmax=2)
    for i, (point, truth, certificate) in enumerate(zip(INPUTS.tolist(), TRUTH, certificates, strict=True)):
        colour, said = colour_of(certificate), NAMES[certificate.label or BLUE]
        axes.add_patch(Circle(point, certificate.radius, facecolor=f"{colour}40", edgecolor=colour, lw=1.5))
        axes.plot(*point, "o" if certificate.label == truth else "X", color="black", ms=4.5)
        lines = [f"$x_{i + 1}$: $\\sigma$ = {format_nearest(certificate.sigma, 2)}"]
        lines += [f"radius {format_down(certificate.radius, 2)}"]
        lines += [] if certificate.label == truth else [f"says {said}"]
        axes.text(*LABELS[i], "\n".join(lines), fontsize=9, va="center", linespacing=1.3)
    axes.set(xlim=WINDOW[:2], ylim=WINDOW[2:], aspect="equal", xticks=[], yticks=[])


def draw_boundary(axes: Axes, smoothed: SmoothedClassifier) -> None:
    """Where the smoothed classifier changes its answer."""
    x, y, points = grid(60)
    shares = count_classes(
        smoothed.classifier,
        points,
        torch.full((len(points),), ONE_SIGMA),
        noise=smoothed.noise,
        n=640,
        # The same noise for all points makes for a smooth line.
        streams=[random_stream(0, 0, Stage.PREDICTION, points.device) for _ in points],
        batch_size=1024,
    )
    for label in (ORANGE, GREEN):
        others = [other for other in range(3) if other != label]
        lead = shares[:, label] - shares[:, others].amax(dim=1)
        lines = axes.contour(x, y, lead.reshape(len(y), len(x)), [0.0], colors="0.2", linewidths=1, linestyles="--")
    (line,), _ = lines.legend_elements()
    axes.legend([line], ["smoothed classifier's boundary"], loc="upper left", fontsize=8.5, frameon=False)


def draw_curves(
    panels: NDArray[np.object_],
    fixed: SmoothedClassifier,
    before: Sequence[PointCertificate],
    after: Sequence[PointCertificate],
) -> None:
    """What certification says of each input at every sigma, with the one sigma and the input's own marked."""
    smoothed = [SmoothedClassifier(fixed.classifier.model, num_classes=3, sigma=sigma) for sigma in SIGMAS.tolist()]
    swept = [g.certify(INPUTS, n=SAMPLES) for g in smoothed]
    for i, column in enumerate(panels.T):
        for axes, name in zip(column, ("p_lower", "radius"), strict=True):
            values = np.array([getattr(certificates[i], name) for certificates in swept])
            for label in (BLUE, ORANGE, GREEN):
                is_said = np.array([certificates[i].label == label for certificates in swept])
                axes.plot(SIGMAS, np.where(is_said, values, np.nan), color=COLOURS[label], lw=2)
            for certificate, (marker, size) in zip((before[i], after[i]), MARKERS, strict=True):
                value = getattr(certificate, name)
                axes.plot(certificate.sigma, value, marker, ms=size, color=colour_of(certificate), mec="black")
            axes.axvline(ONE_SIGMA, color="0.6", lw=1, ls=":", zorder=0)
            axes.grid(alpha=0.2)
            axes.spines[["top", "right"]].set_visible(False)
        confidence, radius = column
        confidence.set_title(f"$x_{i + 1}$, truly {NAMES[TRUTH[i]]}, {STORIES[i]}", fontsize=10)
        confidence.set(ylim=(0.48, 1.04))
        radius.set(xscale="log", xlabel="$\\sigma$", xticks=[0.05, 0.1, 0.2, 0.4, 0.8, 1.6], ylim=(0, None))
        radius.xaxis.set_major_formatter("{x:g}")
        radius.xaxis.set_minor_locator(NullLocator())
    panels[0, 0].set_ylabel("probability of the\nanswer, at least")
    panels[1, 0].set_ylabel("certified radius")
    markers = [panels[0, 0].plot([], [], marker, ms=size, color="white", mec="black")[0] for marker, size in MARKERS]
    panels[0, 0].legend(markers, [f"$\\sigma$ = {ONE_SIGMA}", "$\\sigma^*$"], loc="lower left", frameon=False)


def grid(size: int) -> tuple[NDArray[np.float64], NDArray[np.float64], Tensor]:
    """Points all over the window: their x and y, and all of them as inputs."""
    left, right, bottom, top = WINDOW
    x, y = np.linspace(left, right, size), np.linspace(bottom, top, size)
    return x, y, torch.tensor(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2), dtype=torch.float32)


def colour_of(certificate: PointCertificate) -> str:
    assert certificate.label is not None, "nothing abstains here"
    return COLOURS[certificate.label]


if __name__ == "__main__":
    main()
