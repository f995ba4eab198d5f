"""Where the time of a training step goes: data, noise, forward and backward pass, optimizer.

The CPU recipe for CIFAR-10 takes some steps on made-up images of the same size, timed part by part.

    python benchmarks/training.py [--steps 30]
"""

import numpy as np
from lightning_fabric import Fabric

from breakdown import Stopwatch
from networks import CLASSES, SHAPE
from part import Part, finish, parser
from sigmax import Gaussian
from sigmax.data import ArraySource
from sigmax.train.examples import ExampleStream
from sigmax.train.presets import make_recipe
from sigmax.train.training import Training

PRESET = "cpu-cifar10-cohen"
DATA, NOISE, PASSES, OPTIMIZER, REST = "waiting for data", "drawing noise", "forward and backward", "optimizer", "rest"


def main() -> None:
    options_of = parser(__doc__, repeats=1)
    options_of.add_argument("--steps", type=int, default=30, help="default: %(default)s")
    options = options_of.parse_args()
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (10_000, *SHAPE), dtype=np.uint8)
    names = tuple(f"class {i}" for i in range(CLASSES))
    source = ArraySource("made up", pixels, draw.integers(0, CLASSES, len(pixels)), names, levels=255)
    training = Training(make_recipe("cifar10", {"sigma": 0.25}, preset=PRESET), source)
    for _ in range(3):  # the first steps also build what all use
        training.step()
    watch = Stopwatch(REST)
    watch.put_on(ExampleStream, "at", DATA)
    watch.put_on(Gaussian, "draw", NOISE)
    watch.put_on(type(training.recipe.objective), "__call__", PASSES)
    watch.put_on(Fabric, "backward", PASSES)
    watch.put_on(type(training.optimizer), "step", OPTIMIZER)
    with watch.running(REST):
        for _ in range(options.steps):
            training.step()
    total = sum(watch.seconds.values())
    part = Part(
        title=f"Where the time of a training step goes: {PRESET}",
        claim="forward and backward pass take at least 95 % of it "
        f"(here: {100 * watch.seconds[PASSES] / total:.1f} %).",
        note=f"{options.steps} steps. The optimizer is Muon, whose steps are matrix products.",
        rows=[
            {"what": label, "ms per step": 1_000 * took / options.steps, "share, %": 100 * took / total}
            for label, took in sorted(watch.seconds.items(), key=lambda item: -item[1])
        ],
    )
    finish(part, options.json)


if __name__ == "__main__":
    main()
