"""An experiment in its folder: stopped or killed anywhere, it goes on and ends with the same report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, final

from torch import nn

from sigmax.data import ImageSource
from sigmax.engine import Engine, Tracker, certify
from sigmax.errors import RecordError
from sigmax.files import lock_folder, write_atomically
from sigmax.models.reference import ModelReference
from sigmax.paper.comparison import compare_with_paper
from sigmax.paper.experiment import Experiment, Network
from sigmax.paper.machine import Machine
from sigmax.paper.plan import RUNS, Sources, Step, load_sources, make_plan
from sigmax.report.report import Report, compose_report
from sigmax.runs import CONFIG, Run, read_run
from sigmax.runs.folder import check_same
from sigmax.train import train

SETTINGS, COPY, REPORT = "experiment.json", "experiment.toml", "report"


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
        self.experiment, self.out, self.machine = experiment, out, machine
        # Missing data is refused before anything is written.
        self.sources = load_sources(experiment, download=download)
        self._lock = lock_folder(out)
        try:
            settings = check_folder(experiment, out, self.sources)
            write_atomically(out / SETTINGS, (json.dumps(settings, indent=2) + "\n").encode())
            write_atomically(out / COPY, experiment.text.encode())
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def plan(self, only: str = "*") -> list[Step]:
        """What is done and what is left; see `make_plan`."""
        return make_plan(self.experiment, self.out, machine=self.machine, only=only, sources=self.sources)

    def work(self, step: Step, track: Tracker, engine: Engine | None = None) -> None:
        """Do what is left of a step; `engine` is where inputs are certified, by default this process."""
        if step.kind == "train":
            self._train(step, track)
            return
        run = self.experiment.certifications[step.name]
        experts = [replace(each, model=self._model(n)) for each, n in zip(run.spec.experts, run.experts, strict=True)]
        spec = replace(run.spec, model=self._model(run.network), experts=tuple(experts), batch=self.machine.batch)
        certify(spec, self.out / RUNS / run.name, track=track, engine=engine, resume=True)

    def report(self) -> Path | None:
        """Write the report on the complete certifications, marked as partial if some are missing; None: all are."""
        source = self.sources["test"]
        found = compose_result(self.experiment, self.out, inputs=len(source), source=source)
        return found.write(self.out / REPORT) if found else None

    def _train(self, step: Step, track: Tracker) -> None:
        network = self.experiment.networks[step.name]
        assert network.recipe is not None
        start = self._model(self.experiment.networks[network.start]).load().model if network.start else None
        assert start is None or isinstance(start, nn.Module)
        with track(f"training {network.name}", step.total - step.done) as advance:
            train(
                network.recipe,
                self.sources["train"],
                self.out / network.model.name,
                held_out=self.sources["test"],
                fabric=self.machine.fabric(network.recipe.precision),
                network=start,
                resume=True,
                on_step=lambda _: advance(1),
            )

    def _model(self, network: Network) -> ModelReference:
        """The network, to be run on this machine."""
        place = str(self.out / network.model.name) if network.recipe else network.model.name
        return replace(network.model, name=place, backend=self.machine.backend, device=self.machine.device)


def compose_result(
    experiment: Experiment, out: Path, *, inputs: int, source: ImageSource | None = None
) -> Report | None:
    """The report on the complete certifications of a folder, marked as partial if some are missing; None: all are.

    It reads records only; nothing is written. `inputs` is the size of the data set, `source` itself, for pictures.
    """
    wanted = len(experiment.data.indices(inputs))
    found = {run.name: _read(out / RUNS / run.name, run.network) for run in experiment.certifications.values()}
    done = {name: run for name, run in found.items() if run is not None and len(run.table) >= wanted}
    if not done:
        return None
    title, said, runs = experiment.report.title, list(experiment.report.scaled_down), list(done.values())
    if missing := [name for name in found if name not in done]:
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        said.insert(0, f"Partial: {len(done)} of {len(found)} certifications are complete. Missing: {names}.")
        title += " (partial)"
    return compose_report(runs, title=title, source=source, tables=compare_with_paper(experiment, runs), notes=said)


def _read(folder: Path, network: Network) -> Run | None:
    """The run in a folder; what its network is called and how it was trained is as the experiment says."""
    run = read_run(folder) if (folder / CONFIG).exists() else None
    if run is None or run.spec is None or run.spec.found is None:
        return None
    model = replace(run.spec.model, name=network.name if network.recipe else network.model.name)
    return replace(run, spec=replace(run.spec, model=model, found=replace(run.spec.found, trained=network.trained)))


def check_folder(experiment: Experiment, out: Path, sources: Sources) -> dict[str, Any]:
    """The settings of the experiment and digests of its images, as plain values.

    A folder that was begun with others is refused. Networks and certifications may be added; what was there must stay.
    Images that are not here are not looked at.
    """
    new = experiment.settings()
    new["data"] |= {part: source.digest() for part, source in sources.items()}
    path = out / SETTINGS
    if not path.exists():
        return new
    try:
        old = json.loads(path.read_text())
        new["data"] = old["data"] | new["data"]
        kept = {part: {name: new[part].get(name) for name in old[part]} for part in old}
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise RecordError(f"{path}: expected the settings of an experiment, got: {error}") from error
    check_same(old, kept, out)
    return new
