"""How much do networks that never saw noise certify behind a denoiser?

    python benchmarks/off_the_shelf.py run FILES [NAME …]
    python benchmarks/off_the_shelf.py page

FILES is a folder with `off-the-shelf/cifar10-resnet56-akamaster.th`, of which only the tensors are read, and
`imagenet-val50/<class index>/*.JPEG`. $SIGMAX_DATA has CIFAR-10. Runs are continued where they stopped. Together they
take about 50 minutes of one core of an AMD EPYC (torch 2.13.0, one thread). `page` writes docs/results/off-the-shelf.md
from the records alone.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from sigmax.budget import Budget
from sigmax.data.reference import DataReference
from sigmax.engine import certify
from sigmax.metrics import accuracy_interval, certified_accuracy
from sigmax.models.reference import ModelReference
from sigmax.rounding import format_duration, format_nearest, format_whole
from sigmax.runs import TABLE, CertificationSpec, read_table
from sigmax.sampling import Progress
from sigmax.search import FixedSigma, HalvingSearch, SigmaSearch

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/results/off-the-shelf"
SIGMA = 0.25
RADII = (0.25, 0.5, 0.75)
# A search of a quarter of the usual samples: here the samples are dear.
SEARCHES: dict[str, SigmaSearch] = {
    "fixed": FixedSigma(SIGMA),
    "per-input": HalvingSearch(initial=SIGMA, candidates=7, samples=8, pilot=32),
}
RESNET56 = ModelReference(
    name="off-the-shelf/cifar10-resnet56-akamaster.th", normalize="imagenet", denoiser="ffdnet", device="cpu"
)
LITE0 = ModelReference(
    name="off_the_shelf:efficientnet_lite0", classes=1000, denoiser="off_the_shelf:ffdnet_on_means", device="cpu"
)
NAMES = {"cifar10": "CIFAR-10", "imagenet": "ImageNet", "resnet56": "ResNet-56", "lite0": "EfficientNet-Lite0"}
# Name: model, data, samples that select the class, batch.
NETWORKS = {
    "cifar10-resnet56": (RESNET56, DataReference(name="cifar10", skip=100), 100, 64),
    "imagenet-lite0": (LITE0, DataReference(name="imagenet:imagenet-val50"), 32, 16),
}


def requests() -> dict[str, CertificationSpec]:
    """All runs by name."""
    return {
        f"{name}-{kind}": CertificationSpec(
            model=model,
            data=data,
            search=search,
            budget=Budget(n0=n0, n=1_000, radii=RADII, n_wrong=100),
            batch=batch,
            memory=None if search.is_per_input else f"memories/{name}-{kind}.db",
        )
        for name, (model, data, n0, batch) in NETWORKS.items()
        for kind, search in SEARCHES.items()
    }


@contextmanager
def _quiet(_what: str, _total: int) -> Iterator[Progress]:
    yield lambda _done: None


def run(files: Path, names: list[str]) -> None:
    """Certify the runs of these names, by default all, with the files in this folder."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(ROOT / "examples"))
    out = FOLDER.resolve() / "runs"
    os.chdir(files)  # so that the records hold no path of this machine
    for name, spec in requests().items():
        if not names or name in names:
            certify(spec, out / name, track=_quiet, resume=True, on_note=lambda note: print(note, flush=True))
            print(f"{name}: done", flush=True)


_HEAD = """# What do networks off the shelf certify?

These networks never saw noise. A denoiser in front of them makes them certifiable: FFDNet, told the sigma of each
input. Nothing was trained.

| network | data | sigma | inputs | at 0 | at 0.25 | at 0.5 | at 0.75 | time per input |
|---|---|---|---|---|---|---|---|---|
"""
_FOOT = """
*Certified accuracy of settled answers at each radius, with 95 % intervals over the choice of inputs (Clopper-Pearson).
n = 1,000, alpha = 0.001, exact noise on 8-bit pixels, one thread of an AMD EPYC that other programs shared. {time}*

- "per input" is halving from sigma0 = 0.25 with a quarter of the usual search samples.
- With n = 1,000 no radius exceeds 2.47 sigma, so one sigma of 0.25 cannot reach 0.75.
- Only the radii of the table were tested, which takes fewer samples (`--at 0.25,0.5,0.75`). Misclassified inputs got at
  most 100.
- CIFAR-10: every 100th test image. The network is [akamaster's ResNet-56][resnet56], 93.4 % on clean images. The
  denoiser is `ffdnet`.
{imagenet}
```
python benchmarks/off_the_shelf.py run FILES
python benchmarks/off_the_shelf.py page
```

The records are in `docs/results/off-the-shelf/runs`. With your own model:
[a classifier that never saw noise](../own-model.md#a-classifier-that-never-saw-noise).

[resnet56]: https://github.com/akamaster/pytorch_resnet_cifar10
"""
_IMAGENET = """\
- ImageNet: 50 validation images, the first of every 20th class. The network is EfficientNet-Lite0 of PyPI. The denoiser
  is FFDNet on the means of 2 x 2 pixels, in bfloat16, ten times as fast (`examples/off_the_shelf.py`).
"""


def page() -> None:
    """Write the page from the records that there are."""
    lines, seconds = [], 0.0
    for name, spec in requests().items():
        if not (FOLDER / "runs" / name / TABLE).exists():
            continue
        table = read_table(FOLDER / "runs" / name)
        data, network, *_ = name.split("-")
        cells = []
        for radius in (0.0, *RADII):
            low, high = (format_nearest(bound, 2) for bound in accuracy_interval(table, radius))
            cells.append(f"{format_nearest(float(certified_accuracy(table, radius)))} ({low} to {high})")
        sigma = "per input" if spec.is_per_input else format_whole(SIGMA)
        seconds += float(table.seconds.sum())
        time = format_duration(float(table.seconds.mean()))
        lines.append(f"| {NAMES[network]} | {NAMES[data]} | {sigma} | {len(table)} | {' | '.join(cells)} | {time} |\n")
    imagenet = _IMAGENET if any("ImageNet" in line for line in lines) else ""
    time = f"All rows together took {format_duration(seconds)}."
    text = _HEAD + "".join(lines) + _FOOT.format(time=time, imagenet=imagenet)
    (FOLDER.parent / "off-the-shelf.md").write_text(text)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["page"]:
            page()
        case ["run", files, *names]:
            run(Path(files), names)
        case _:
            sys.exit(__doc__)
