"""How much do networks that never saw noise certify behind a denoiser?

    python benchmarks/off_the_shelf.py run FILES [NAME …]
    python benchmarks/off_the_shelf.py measure FILES
    python benchmarks/off_the_shelf.py page

FILES is a folder with `off-the-shelf/cifar10-resnet56-akamaster.th`, of which only the tensors are read, and
`imagenet-val50/<class index>/*.JPEG`. $SIGMAX_DATA has CIFAR-10. Runs are continued where they stopped. Together they
take about two hours of one core of an AMD EPYC (torch 2.13.0, one thread). `measure` times a sample of each network.
`page` writes docs/results/off-the-shelf.md from these records alone.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill

import torch

from sigmax import Experts, SmoothedClassifier
from sigmax.budget import Budget
from sigmax.data.reference import DataReference
from sigmax.engine import certify
from sigmax.files import write_atomically
from sigmax.metrics import accuracy_interval, certified_accuracy
from sigmax.models.reference import ModelReference
from sigmax.rounding import format_duration, format_nearest, format_whole
from sigmax.runs import TABLE, CertificationSpec, read_table
from sigmax.sampling import Progress
from sigmax.search import FixedSigma, HalvingSearch, SigmaSearch

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/results/off-the-shelf.md"
RUNS = PAGE.with_suffix("") / "runs"
TIMES = PAGE.with_suffix("") / "times.json"
INPUTS = {"cifar10": 100, "imagenet": 50}
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
    out = RUNS.resolve()
    os.chdir(files)  # so that the records hold no path of this machine
    for name, spec in requests().items():
        if not names or name in names:
            certify(spec, out / name, track=_quiet, resume=True, on_note=lambda note: print(note, flush=True))
            print(f"{name}: done", flush=True)


def measure(files: Path) -> None:
    """Keep the processor time of a noisy sample: unlike the time in a table, it hardly depends on other programs."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(ROOT / "examples"))
    os.chdir(files)
    found = {}
    for name, (model, data, _, batch) in NETWORKS.items():
        classifier = model.classifier(model.load())
        smoothed = SmoothedClassifier(
            Experts([classifier]), num_classes=classifier.num_classes, sigma=SIGMA, levels=255, batch_size=batch
        )
        x = torch.from_numpy(data.load().images([0]))
        smoothed.certify(x, n0=batch, n=batch)
        began, samples = time.process_time(), 512
        smoothed.certify(x, n0=samples // 2, n=samples // 2)
        found[name] = (time.process_time() - began) / samples
    write_atomically(TIMES, f"{json.dumps(found, indent=2)}\n".encode())


_HEAD = """# What do networks off the shelf certify?

{lead}

| network | data | sigma | inputs | at 0 | at 0.25 | at 0.5 | at 0.75 | time per input |
|---|---|---|---|---|---|---|---|---|
"""
_FOOT = """
*Certified accuracy of settled answers at each radius, with 95 % intervals over the choice of inputs (Clopper-Pearson).
n = 1,000, alpha = 0.001, exact noise on 8-bit pixels.*

- The networks never saw noise, and nothing was trained. Before them stands the denoiser FFDNet, which is told the sigma
  of each input.
- "per input" is halving from sigma0 = 0.25 with a quarter of the usual search samples.
- With n = 1,000 no radius exceeds 2.47 sigma, so one sigma of 0.25 cannot reach 0.75.
- Only the radii of the table were tested, which takes fewer samples (`--at 0.25,0.5,0.75`). Misclassified inputs got at
  most 100.
- Times are processor time of one thread of an AMD EPYC (torch 2.13.0): the samples of an input, times the seconds of
  one sample in `times.json`. The times in the records are longer, because other programs shared the cores.
- CIFAR-10: every 100th test image. The network is [akamaster's ResNet-56][resnet56], 93.4 % on clean images. The
  denoiser is `ffdnet`.
{imagenet}
```
python benchmarks/off_the_shelf.py run FILES
python benchmarks/off_the_shelf.py measure FILES
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


def compose() -> str:
    """The page, from the records of the runs that are complete."""
    lines, certified, times = [], {}, json.loads(TIMES.read_text())
    for name, spec in requests().items():
        if not (RUNS / name / TABLE).exists():
            continue
        table = read_table(RUNS / name)
        data, network, *_ = name.split("-")
        if len(table) < INPUTS[data]:
            continue
        certified[name] = format_nearest(100 * float(certified_accuracy(table, RADII[0])), 0)
        cells = []
        for radius in (0.0, *RADII):
            low, high = (format_nearest(bound, 2) for bound in accuracy_interval(table, radius))
            cells.append(f"{format_nearest(float(certified_accuracy(table, radius)))} ({low}&nbsp;to&nbsp;{high})")
        sigma = "per input" if spec.is_per_input else format_whole(SIGMA)
        samples = spec.budget.n0 + spec.search.cost() + float(table.samples.mean())
        took = format_duration(times[f"{data}-{network}"] * samples)
        lines.append(f"| {NAMES[network]} | {NAMES[data]} | {sigma} | {len(table)} | {' | '.join(cells)} | {took} |\n")
    imagenet = _IMAGENET if any("ImageNet" in line for line in lines) else ""
    leads = []
    for name in NETWORKS:
        data, network = name.split("-")
        fixed, own = (certified.get(f"{name}-{kind}") for kind in SEARCHES)
        if fixed and own:
            leads.append(
                f"At radius {RADII[0]:g}, {NAMES[network]} certifies {fixed} % of {INPUTS[data]} {NAMES[data]} images "
                f"with one sigma and {own} % with per-input sigma."
            )
    return _HEAD.format(lead=fill(" ".join(leads), 120)) + "".join(lines) + _FOOT.format(imagenet=imagenet)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["page"]:
            PAGE.write_text(compose())
        case ["run", files, *names]:
            run(Path(files), names)
        case ["measure", files]:
            measure(Path(files))
        case _:
            sys.exit(__doc__)
