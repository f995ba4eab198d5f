"""`sigmax train`."""

import json
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from sigmax.cli.console import check_interrupt, log_console, note, out_console, resumable, say
from sigmax.cli.groups import command
from sigmax.cli.options import parse_range, parse_settings
from sigmax.errors import InvalidInputError
from sigmax.rounding import format_duration, format_nearest

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from sigmax.train import Recipe, StepReport

# Steps over which the progress line averages: one batch alone says little.
_WINDOW = 50
_LONG = 60.0  # seconds that are announced
_WIDE = 120  # characters, from which the progress line has room for all its numbers


def _list_presets(preset: str | None) -> str | None:
    """Show the presets if that is asked; it needs no data."""
    if preset != "list":
        return preset
    # Read as text: the modules of training need torch, which takes seconds to load.
    file = Path(__file__).parents[1] / "train" / "presets.toml"
    for name, entry in tomllib.loads(file.read_text())["presets"].items():
        sigmas = f" ({', '.join(f'{sigma:g}' for sigma in entry['sigmas'])})" if "sigmas" in entry else ""
        say(f"{name:30} {entry['says']}{sigmas}")
    raise typer.Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOptions:
    """Settings of a recipe, as `sigmax.train.presets.make_recipe` takes them; None: not given."""

    sigma: float | None = None
    sigma_range: str | None = None
    per_input: bool | None = None
    warmup: int | None = None
    search_steps: int | None = None
    search_samples: int | None = None
    step_size: float | None = None
    noise: str | None = None
    arch: str | None = None
    normalize: str | None = None
    epochs: int | None = None
    batch: int | None = None
    lr: float | None = None
    schedule: str | None = None
    drop_every: int | None = None
    optimizer: str | None = None
    weight_decay: float | None = None
    clip: float | None = None
    ema: float | None = None
    augment: str | None = None
    seed: int | None = None
    precision: str | None = None

    def given(self) -> dict[str, Any]:
        """The settings that were given."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        said["sigma_range"] = parse_range("--sigma-range", self.sigma_range)
        return {name: value for name, value in said.items() if value is not None}


@command
def train(
    data: str,
    settings: RecipeOptions,
    method: str | None = None,
    option: list[str] | None = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Settings by name; `--preset list` shows them.", callback=_list_presets, is_eager=True),
    ] = None,
    start: str | None = None,
    split: str = "train",
    out: Path | None = None,
    resume: bool = False,
    log_to: Literal["tensorboard", "csv", "mlflow", "wandb"] = "tensorboard",
    device: str = "auto",
    devices: int | None = None,
    download: bool = False,
    as_json: bool = False,
) -> None:
    """Train a network that certifies well, with one sigma, per-example sigma or a range of sigma.

    Examples:
    `sigmax train digits --sigma 0.25 --out runs/digits`

    `sigmax train cifar10 --preset cpu-cifar10-cohen --sigma 0.25 --out runs/cohen`

    `sigmax train cifar10 --method smoothadv --per-input --from runs/cohen --epochs 5 -o warmup=0 --out runs/ds2`

    `sigmax train cifar10 --arch patch-resnet10-aware --sigma-range 0.06,1.0 --out runs/aware`

    `torchrun --nproc-per-node 8 -m sigmax train imagenet:DIR --preset paper-imagenet-cohen …`
    """
    from sigmax.data import check_spelling, has_splits, load_source
    from sigmax.train import train as run

    check_spelling(data)  # first: without its data set, a recipe would seem to lack other things
    recipe, network = make_recipe(
        data, settings.given(), method=method, options=parse_settings("--option", option), preset=preset, start=start
    )
    sigma = " to ".join(f"{level:g}" for level in recipe.sigma_source.bounds or (recipe.sigma,))
    if out is None:
        name = f"{recipe.method.rpartition(':')[2]}-{sigma.replace(' to ', '-')}"
        out = Path("runs") / f"{data.partition(':')[0]}-{name}"
    if split not in ("train", "fit"):
        raise InvalidInputError(f"expected --split train or fit, got split={split!r}")
    source = load_source(data, split="fit" if split == "fit" else "train", download=download)
    # A folder of one's own has no images that the training does not see.
    held_out = load_source(data, split="tune" if split == "fit" else "test") if has_splits(data) else None
    fabric = _fabric(recipe, device, devices)
    with resumable(f"the same command with --out {out} --resume"), _progress(recipe, fabric.is_global_zero) as show:
        summary = run(
            recipe,
            source,
            out,
            held_out=held_out,
            fabric=fabric,
            network=network,
            resume=resume,
            log_to=log_to,
            on_step=show,
        )
    if not fabric.is_global_zero:
        return
    if as_json:
        out_console.print_json(json.dumps(asdict(summary)))
        return
    say(f"{summary.method}, sigma {sigma}: {summary.epochs} epochs in {format_duration(summary.seconds)}")
    if summary.noisy_accuracy:
        shares = [f"{format_nearest(share)} at sigma {level:g}" for level, share in summary.noisy_accuracy.items()]
        say(f"held-out accuracy under one draw of noise: {', '.join(shares)}")
    say(f"network: {out / 'model.safetensors'}")
    say(f"curves:  {_curves_hint(out, log_to)}")
    test = data if has_splits(data) else f"{data.partition(':')[0]}:HELD-OUT"
    per_input = "--per-input " if recipe.sigma_source.is_per_input else ""
    say(f"next:    sigmax certify {out} --data {test} {per_input}--n 10000 --max 100")


def _curves_hint(out: Path, log_to: str) -> str:
    """How to look at the curves, with what is installed."""
    if log_to == "tensorboard" and find_spec("tensorboard") is None:
        return f"pip install tensorboard, then tensorboard --logdir {out}"
    return {
        "tensorboard": f"tensorboard --logdir {out}",
        "csv": f"{out / 'csv'}",
        "mlflow": f"mlflow ui --backend-store-uri sqlite:///{out / 'mlflow' / 'mlflow.db'}",
        "wandb": f"{out / 'wandb'}, offline",
    }[log_to]


def make_recipe(
    data: str,
    given: dict[str, Any],
    *,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    preset: str | None = None,
    start: str | None = None,
) -> tuple["Recipe", Any]:
    """The recipe that the options ask for, and the network to start from."""
    from sigmax.models import load_model
    from sigmax.train import presets
    from sigmax.train.training import plain_form

    network = inherited = None
    if start is not None:
        # A noise-aware network may start as its plain form: then --arch does not say what the file holds.
        arch = given.get("arch")
        arch = arch if arch and plain_form(arch) == arch else None
        loaded = load_model(start, arch=arch, normalize=given.get("normalize"))
        if loaded.card is None:
            raise InvalidInputError(f"expected a checkpoint with --from, got {start}, which is not one")
        network, inherited = loaded.model, presets.decided_by(loaded.card)
    recipe = presets.make_recipe(data, given, method=method, options=options, preset=preset, inherited=inherited)
    usual = presets.presets()[preset].sigmas if preset else ()
    if usual and recipe.sigma not in usual:
        note(f"the paper has sigma in {usual}, not {recipe.sigma:g}")
    return recipe, network


def _fabric(recipe: "Recipe", device: str, devices: int | None) -> "Fabric":
    """Where the training runs: as torchrun says if it started this process, else on the devices of this machine."""
    import os

    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    if devices is not None and devices < 1:
        raise InvalidInputError(f"expected --devices >= 1, got devices={devices}")
    nodes = 1
    if "LOCAL_WORLD_SIZE" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    try:
        fabric = Fabric(accelerator=device, devices=devices or "auto", num_nodes=nodes, precision=recipe.precision)
    except (ValueError, TypeError, RuntimeError, MisconfigurationException) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"expected devices of this machine, got device={device}, devices={devices}: {reason}"
        ) from error
    fabric.launch()
    return fabric


@contextmanager
def _progress(recipe: "Recipe", is_first: bool) -> Iterator[Callable[["StepReport"], None] | None]:
    """A live line on a terminal, a line per epoch in a log file; only the first process prints."""
    if not is_first:
        yield None
        return
    recent: deque[tuple[StepReport, float]] = deque(maxlen=_WINDOW)
    epoch, held_out, is_told = 0, "", False

    def describe() -> str:
        """The numbers of the last steps, as many as leave room for the bar and the time left."""
        reports = [report for report, _ in recent]
        spent = recent[-1][1] - recent[0][1]
        speed = sum(report.examples for report in reports[1:]) / spent if spent else 0.0
        loss, accuracy = (
            sum(getattr(report, name) for report in reports) / len(reports) for name in ("loss", "noisy_accuracy")
        )
        short, more = f"loss {loss:.3f}  {100 * accuracy:.1f} %", f"  {speed:,.0f} images/s"
        if log_console.is_terminal and log_console.width < _WIDE:
            return short + held_out
        return f"{short} under noise{held_out}  mean sigma {reports[-1].mean_sigma:.4f}{more}"

    def report_epoch() -> None:
        if recent and not log_console.is_terminal:
            log_console.print(f"epoch {epoch}/{recipe.epochs}  {describe()}", highlight=False, soft_wrap=True)

    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None if log_console.width < _WIDE else 40),
        TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True),
    )
    with Progress(
        *columns, console=log_console, transient=True, disable=not log_console.is_terminal, expand=True
    ) as bar:
        task = bar.add_task("", total=None, numbers="")

        def show(report: "StepReport") -> None:
            nonlocal epoch, held_out, is_told
            check_interrupt()
            if report.epoch != epoch:
                report_epoch()
            epoch = report.epoch
            recent.append((report, time.perf_counter()))
            if len(recent) == _WINDOW and not is_told:
                is_told = True
                left = (recent[-1][1] - recent[0][1]) / (_WINDOW - 1) * (report.steps - report.step)
                if left > _LONG:
                    note(f"the training takes about {format_duration(left)}")
            if report.held_out_accuracy is not None:
                held_out = f"  held-out {100 * report.held_out_accuracy:.1f} %"
            description = f"epoch {epoch}/{recipe.epochs}"
            bar.update(task, description=description, completed=report.step, total=report.steps, numbers=describe())

        yield show
        report_epoch()
