"""Put a trained network into the zoo: weights rounded to 16 bits, and a card that says how good it is under noise.

    python benchmarks/to_zoo.py runs/aware cifar10-aware-cohen [--data cifar10] [--split tune] [--at 0.12,0.25,0.5,1.0]

RUN is a finished training, or a checkpoint of one. The accuracy is that of the rounded network, on images that the
training did not see: `--split tune` for one of `sigmax train … --split fit`, else `--split test`.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from torch import nn

from sigmax.cards import read_card, replace_card, zoo_file
from sigmax.data import Split, load_source
from sigmax.models.checkpoint import load_model, save_model
from sigmax.noise import Gaussian, find_noise
from sigmax.rounding import format_nearest
from sigmax.train.evaluation import noisy_accuracy
from sigmax.train.run import judged_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a training, or its checkpoint")
    parser.add_argument("name", help="the network will be zoo:NAME")
    parser.add_argument("--data", default="cifar10", help="default: %(default)s")
    parser.add_argument("--split", default="tune", choices=["tune", "test"], help="default: %(default)s")
    parser.add_argument("--at", default="", help="sigmas, such as 0.12,0.25; default: the usual ones in its range")
    parser.add_argument("--out", type=Path, help="another file instead of that of the zoo")
    parser.add_argument("--licence", default="MIT", help="default: %(default)s")
    options = parser.parse_args()
    sigmas = [float(sigma) for sigma in options.at.split(",") if sigma]
    path = options.out or zoo_file(options.name, is_new=True)
    to_zoo(options.run, path, data=options.data, split=options.split, sigmas=sigmas, licence=options.licence)
    card = read_card(path)
    assert card is not None
    for sigma, share in card.noisy_accuracy:
        print(f"{format_nearest(share)} at sigma {sigma:g}")
    print(f"zoo:{options.name}: {path}, {path.stat().st_size / 1e6:.1f} MB")


def to_zoo(
    run: str, path: Path, *, data: str, split: Split, sigmas: list[float] | None = None, licence: str = "MIT"
) -> None:
    """Round and copy a network to this file, judge it, and write what was found into its card."""
    loaded = load_model(run)
    assert isinstance(loaded.model, nn.Sequential)
    assert loaded.card is not None
    card = replace(loaded.card, data=data.partition(":")[0], licence=licence)
    save_model(path, loaded.model[-1], card, in_half=True)
    rounded = load_model(str(path)).model
    assert isinstance(rounded, nn.Module)
    source, noise = load_source(data, split=split), find_noise(card.noise or Gaussian.name)
    accuracy = tuple(
        (sigma, noisy_accuracy(rounded, source, noise=noise, sigma=sigma, seed=0))
        for sigma in sigmas or judged_at(card)
    )
    replace_card(path, replace(card, noisy_accuracy=accuracy))


if __name__ == "__main__":
    main()
