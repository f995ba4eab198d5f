"""An experiment in its folder: stopped or killed anywhere, it goes on and ends with the same report."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from torch import nn

from sigmax.data import ImageSource
from sigmax.engine import Tracker, batch_of, certify_source, check_data, run_notes
from sigmax.errors import RecordError
from sigmax.files import lock_folder, write_atomically
from sigmax.models import BaseClassifier, LoadedModel, ModelCard, load_model
from sigmax.models.backends import place_model
from sigmax.records import CONFIG, TABLE, Run, read_run
from sigmax.report.report import Report, compose_report
from sigmax.reproduce.comparison import compare_with_paper
from sigmax.reproduce.experiment import Certification, Experiment, Network
from sigmax.reproduce.machine import Machine
from sigmax.reproduce.plan import NETWORKS, RUNS, Step, make_plan
from sigmax.reproduce.sources import Sources, load_sources
from sigmax.smoothed import SmoothedClassifier
from sigmax.train import train
from sigmax.train.run import CHECKPOINT, read_checkpoint

SETTINGS, COPY, REPORT = "experiment.json", "experiment.toml", "report"
DATA = "data"  # where the settings have the digests of the images
_SHOWN = 5  # parts of a long list


class TimeIsUpError(Exception):
    """The time that was given is over; what was done is kept."""


@final
class Reproduction:
    """An experiment under way, and the only process that works in its folder.

    Args:
        experiment: What is asked.
        out: The folder. One that was begun with other settings or images is refused; an experiment may grow.
        machine: Where it runs.
        download: Allow fetching a missing data set.
    """

    def __init__(self, experiment: Experiment, out: Path, *, machine: Machine, download: bool = False) -> None:
        self.experiment = experiment
        self.out = out
        self.machine = machine
        # Data that is not here is refused before anything is written.
        self.sources = load_sources(experiment, download=download)
        self.source = self.sources.test
        self._lock = lock_folder(out)
        self._ready: _Ready | None = None
        try:
            settings = check_folder(experiment, out, self.sources)
            write_atomically(out / SETTINGS, (json.dumps(settings, indent=2) + "\n").encode())
            write_atomically(out / COPY, experiment.text.encode())
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def plan(self, only: str = "*") -> list[Step]:
        """What is done and what is left; see `make_plan`."""
        return make_plan(self.experiment, self.out, machine=self.machine, only=only, sources=self.sources)

    def work(self, step: Step, track: Tracker) -> None:
        """Do what is left of a step."""
        if step.kind == "train":
            self._train(step, track)
        else:
            self._certify(next(run for run in self.experiment.certifications if run.name == step.name), track)

    def report(self) -> Path | None:
        """Write the report on the certifications that are complete, marked as partial where some are not.

        None where none is.
        """
        found = compose_result(self.experiment, self.out, inputs=len(self.source), source=self.source)
        if found is None:
            return None
        # Written beside and moved: of an earlier, partial report nothing is left.
        fresh, report = self.out / f"{REPORT}.partial", self.out / REPORT
        shutil.rmtree(fresh, ignore_errors=True)
        first = found.write(fresh)
        shutil.rmtree(report, ignore_errors=True)
        fresh.rename(report)
        return report / first.relative_to(fresh)

    def _train(self, step: Step, track: Tracker) -> None:
        network = self.experiment.network(step.name)
        assert network.recipe is not None
        assert self.sources.train is not None
        start = self._load(self.experiment.network(network.start)).model if network.start else None
        assert start is None or isinstance(start, nn.Module)
        with track(f"training {network.name}", step.total - step.done) as advance:
            train(
                network.recipe,
                self.sources.train,
                self.out / NETWORKS / network.name,
                held_out=self.source,
                fabric=self.machine.fabric(network.recipe.precision),
                network=start,
                resume=True,
                on_step=lambda _: advance(1),
            )

    def _certify(self, run: Certification, track: Tracker) -> None:
        ready = self._prepared(run.network)
        smoothed = SmoothedClassifier(
            ready.model,
            num_classes=ready.card.num_classes,
            noise=run.noise,
            sigma=run.search,
            outputs=ready.card.outputs,
            batch_size=ready.batch,
        )
        name = run.network.model or run.network.name
        certify_source(
            smoothed,
            self.source,
            self.experiment.indices(len(self.source)),
            self.out / RUNS / run.name,
            budget=run.budget,
            track=track,
            resume=True,
            notes=run_notes(
                smoothed,
                model=name,
                data=self.experiment.data.name,
                trained=run.network.trained,
                trained_noise=run.network.noise.name,
            ),
        )

    def _load(self, network: Network) -> LoadedModel:
        return load_model(network.model or str(self.out / NETWORKS / network.name), **network.loading)

    def _prepared(self, network: Network) -> "_Ready":
        """The network ready to be certified; kept for the next certification, because engines take time to start."""
        if self._ready is None or self._ready.name != network.name:
            loaded = self._load(network)
            assert isinstance(loaded.model, nn.Module)
            assert loaded.card is not None
            check_data(self.source, loaded.card.num_classes, loaded.card)
            place_model(loaded.model, self.machine.device)
            plain = BaseClassifier(loaded.model, num_classes=loaded.card.num_classes, outputs=loaded.card.outputs)
            batch = self.machine.batch or self._batch(network, plain)
            model = self.machine.prepare(loaded.model, self.source.shape, batch)
            self._ready = _Ready(name=network.name, card=loaded.card, model=model, batch=batch)
        return self._ready

    def _batch(self, network: Network, classifier: BaseClassifier) -> int:
        """One batch for all runs of a network: that of the first which was begun."""
        folders = [self.out / RUNS / run.name for run in self.experiment.certifications if run.network == network]
        begun = [folder for folder in folders if (folder / CONFIG).exists()]
        return batch_of((begun or folders)[0], classifier, self.source.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A network behind its engine."""

    name: str
    card: ModelCard
    model: nn.Module
    batch: int


def until(deadline: float, track: Tracker) -> Tracker:
    """The same tracker, which stops the work with `TimeIsUpError` once `time.monotonic()` passes the deadline."""

    @contextmanager
    def limited(what: str, total: int) -> Iterator[Callable[[int], None]]:
        with track(what, total) as advance:

            def checked(done: int) -> None:
                advance(done)
                if time.monotonic() >= deadline:
                    raise TimeIsUpError

            yield checked

    return limited


def compose_result(
    experiment: Experiment,
    out: Path,
    *,
    inputs: int,
    source: ImageSource | None = None,
    notes: Sequence[str] = (),
) -> Report | None:
    """The report on the certifications in a folder that are complete, marked as partial where some are not.

    None where none is. It reads records only; nothing is written.

    Args:
        experiment: What was asked.
        out: Its folder.
        inputs: How many the whole data set has.
        source: The data set, for pictures.
        notes: Paragraphs at the top, before what the experiment says of its scale.
    """
    wanted = len(experiment.indices(inputs))
    done: list[tuple[Certification, Run]] = []
    missing = []
    for certification in experiment.certifications:
        folder = out / RUNS / certification.name
        run = read_run(folder) if (folder / TABLE).exists() else None
        if run is None or len(run.table) < wanted:
            missing.append(certification.name)
        else:
            done.append((certification, run))
    if not done:
        return None
    said = [*notes, *experiment.report.scaled_down]
    if missing:
        total = len(experiment.certifications)
        said.insert(0, f"Partial: {len(done)} of {total} certifications are complete. Missing: {_few(missing)}.")
    return compose_report(
        [run for _, run in done],
        title=experiment.report.title + (" (partial)" if missing else ""),
        source=source,
        tables=compare_with_paper(experiment, done),
        notes=said,
    )


def check_folder(experiment: Experiment, out: Path, sources: Sources | None) -> dict[str, Any]:
    """The settings of the experiment; refused if the folder was begun with others, with what differs.

    Networks and certifications may be added; none that was there may change or go. The images must be the same,
    wherever they are; without them (None) only the settings are looked at.
    """
    new: dict[str, Any] = json.loads(json.dumps(experiment.settings()))  # as it will be read again
    digests = sources.digests() if sources else {}
    path = out / SETTINGS
    if not path.exists():
        return {DATA: digests, **new}
    try:
        old = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise RecordError(f"{path}: expected the settings of an experiment, got: {error}") from error
    before: dict[str, str] = old.pop(DATA, None) or _digests_of_work(experiment, out)
    now, then = _flat({name: new.get(name) for name in old}), _flat(old)
    places = {"test": ("certify", experiment.data.name), "train": ("train on", experiment.train_data)}
    changed = [
        f"other images to {use} in {name} (digest {digests[part]}, was {before[part]})"
        for part, (use, name) in places.items()
        if part in digests and digests[part] != before.get(part, digests[part])
    ] + [
        f"{key}={now.get(key)!r} (was {then.get(key)!r})"
        for key in dict.fromkeys([*then, *now])
        if now.get(key) != then.get(key)
    ]
    if changed:
        raise RecordError(
            f"expected the experiment that {out} was begun with, got {_few(changed)}; choose another folder"
        )
    return {DATA: before | digests, **new}


def _digests_of_work(experiment: Experiment, out: Path) -> dict[str, str]:
    """Of the images that work in the folder was done with: the settings did not always have them."""
    folders = (out / RUNS / run.name for run in experiment.certifications)
    runs = (read_run(folder) for folder in folders if (folder / TABLE).exists())
    test = next((run.config.get("data") for run in runs if len(run.table)), None)
    checkpoints = (out / NETWORKS / network.name / CHECKPOINT for network in experiment.networks)
    train = next((read_checkpoint(path)["data"] for path in checkpoints if path.exists()), None)
    return {part: digest for part, digest in {"test": test, "train": train}.items() if digest}


def _few(parts: list[str]) -> str:
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more


def _flat(settings: Any, name: str = "") -> dict[str, Any]:
    """Nested tables as one, the names joined."""
    if not isinstance(settings, dict):
        return {name: settings}
    parts = [_flat(value, f"{name}.{key}" if name else key) for key, value in settings.items()]
    return {key: value for part in parts for key, value in part.items()}
