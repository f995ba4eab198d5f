"""`sigmax train`."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sigmax.cli.console import check_interrupt, log_console, out_console, resumable, say
from sigmax.cli.options import DownloadOption, JsonOption, Norm, parse_range
from sigmax.errors import InvalidInputError
from sigmax.rounding import format_duration, format_nearest

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from sigmax.train import Recipe, StepReport

# Steps over which the progress line averages: one batch alone tells little.
_WINDOW = 50


def _list_presets(preset: str | None) -> str | None:
    """Show the presets where that is what is asked: it needs no data."""
    if preset != "list":
        return preset
    from sigmax.train.presets import PRESETS

    for name, entry in PRESETS.items():
        sigmas = f" ({', '.join(f'{sigma:g}' for sigma in entry.sigmas)})" if entry.sigmas else ""
        say(f"{name:30} {entry.says}{sigmas}")
    raise typer.Exit


def train(
    data: Annotated[
        str, typer.Argument(help="digits, mnist[:DIR], fashion-mnist[:DIR], cifar10[:DIR], imagenet:DIR, folder:DIR, …")
    ],
    sigma: Annotated[
        float | None,
        typer.Option(help="Noise level; by default that of --from. With --per-input, where each example starts."),
    ] = None,
    sigma_range: Annotated[
        str | None, typer.Option(help="LOW,HIGH: each visit to an example draws its level from there.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="cohen, smoothadv, macer, consistency, or package.module:Class.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="NAME=VALUE, an option of the method, such as epsilon=0.5; repeatable."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Settings by name; `--preset list` shows them.", callback=_list_presets, is_eager=True),
    ] = None,
    per_input: Annotated[
        bool | None,
        typer.Option("--per-input/--one-sigma", help="Each example keeps its own sigma (Algorithm 2, DS^2)."),
    ] = None,
    warmup: Annotated[int | None, typer.Option(help="Epochs with one sigma before --per-input begins.")] = None,
    search_steps: Annotated[int | None, typer.Option(help="K, ascent steps on sigma per visit.")] = None,
    search_samples: Annotated[int | None, typer.Option(help="Noise draws per ascent step.")] = None,
    step_size: Annotated[float | None, typer.Option("--search-step-size", help="Of the ascent on sigma.")] = None,
    start: Annotated[str | None, typer.Option("--from", help="A trained network to fine-tune.")] = None,
    arch: Annotated[str | None, typer.Option(help="The network, such as resnet18.")] = None,
    normalize: Annotated[str | None, typer.Option(help="Normalisation before the network.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples per step, over all processes.")] = None,
    lr: Annotated[float | None, typer.Option(help="The highest learning rate.")] = None,
    schedule: Annotated[str | None, typer.Option(help="one-cycle, cosine or step.")] = None,
    drop_every: Annotated[int | None, typer.Option(help="Epochs between the drops of schedule step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or muon.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of the weights.")] = None,
    clip: Annotated[float | None, typer.Option(help="Cut the norm of the gradient to this.")] = None,
    augment: Annotated[str | None, typer.Option(help="none, crop, crop-flip or crop-flip-cutout.")] = None,
    norm: Annotated[Norm | None, typer.Option(help="l2: Gaussian noise; l1: uniform noise.")] = None,
    split: Annotated[
        str,
        typer.Option(help="train: all training images; fit: all but every tenth, which are kept for choices."),
    ] = "train",
    out: Annotated[
        Path | None,
        typer.Option(help="Where the network, the checkpoints and the curves go.", show_default="runs/…"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides weights, order and noise.")] = None,
    precision: Annotated[str | None, typer.Option(help="32-true, 16-mixed or bf16-mixed.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted training.")] = False,
    device: Annotated[str, typer.Option(help="Kind of device; by default an accelerator if any.")] = "auto",
    devices: Annotated[
        int | None, typer.Option(help="Devices of this machine; torchrun says it for itself.", show_default="all")
    ] = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network that certifies well, with one sigma or with its own sigma for each example.

    Examples:
    `sigmax train digits --sigma 0.25 --out runs/digits`

    `sigmax train cifar10 --preset cpu-cifar10-cohen --sigma 0.25 --out runs/cohen`

    `sigmax train cifar10 --method smoothadv --per-input --from runs/cohen --epochs 5 -o warmup=0 --out runs/ds2`

    `torchrun --nproc-per-node 8 -m sigmax train imagenet:DIR --preset paper-imagenet-cohen …`
    """
    from sigmax.data import check_spelling, has_splits, load_source
    from sigmax.train import train as run
    from sigmax.train.run import method_name

    levels = parse_range("--sigma-range", sigma_range)
    given = {
        "arch": arch,
        "sigma": sigma if levels is None or sigma is not None else (levels[0] * levels[1]) ** 0.5,
        "sigma_range": levels,
        "norm": norm.value if norm else None,
        "normalize": normalize,
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "schedule": schedule,
        "drop_every": drop_every,
        "optimizer": optimizer,
        "weight_decay": weight_decay,
        "clip": clip,
        "augment": augment,
        "per_input": per_input,
        "warmup": warmup,
        "search_steps": search_steps,
        "search_samples": search_samples,
        "step_size": step_size,
        "seed": seed,
        "precision": precision,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    check_spelling(data)  # a recipe without its data set would miss other things first
    recipe, network = make_recipe(data, settings, method, option or [], preset, start)
    if out is None:
        out = Path("runs") / f"{data.partition(':')[0]}-{method_name(recipe)}-{recipe.sigma:g}"
    if split not in ("train", "fit"):
        raise InvalidInputError(f"expected --split train or fit, got {split!r}")
    source = load_source(data, split="fit" if split == "fit" else "train", download=download)
    fabric = _fabric(recipe, device, devices)
    with resumable(f"the same command with --out {out} --resume"), _progress(recipe, fabric.is_global_zero) as show:
        summary = run(
            recipe,
            source,
            out,
            held_out=_held_out(data, split),
            fabric=fabric,
            network=network,
            resume=resume,
            on_step=show,
        )
    if not fabric.is_global_zero:
        return
    if as_json:
        out_console.print_json(json.dumps(asdict(summary)))
        return
    say(f"{summary.method}, sigma {summary.sigma:g}: {summary.epochs} epochs in {format_duration(summary.seconds)}")
    if summary.noisy_accuracy is not None:
        say(f"held-out accuracy under one draw of noise: {format_nearest(summary.noisy_accuracy)}")
    say(f"network: {out / 'model.safetensors'}")
    say(f"curves:  tensorboard --logdir {out}")
    test = data if has_splits(data) else f"{data.partition(':')[0]}:HELD-OUT"
    say(f"next:    sigmax certify {out} --data {test} {'--per-input ' if recipe.per_input else ''}--n 10000 --max 100")


def make_recipe(
    data: str, given: dict[str, Any], method: str | None, options: list[str], preset: str | None, start: str | None
) -> tuple["Recipe", Any]:
    """The recipe that the options ask for, and the network to start from."""
    from sigmax.models import load_model
    from sigmax.train.presets import PRESETS, decided_by
    from sigmax.train.presets import make_recipe as make

    network = inherited = None
    if start is not None:
        loaded = load_model(start, arch=given.get("arch"), normalize=given.get("normalize"))
        if loaded.card is None:
            raise InvalidInputError(f"expected a checkpoint to start from, got {start}, which is none")
        network, inherited = loaded.model, decided_by(loaded.card)
    said = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise InvalidInputError(f"expected --option NAME=VALUE, got {option!r}")
        said[name] = value
    recipe = make(data, given, method=method, options=said, preset=preset, inherited=inherited)
    usual = PRESETS[preset].sigmas if preset else ()
    if usual and recipe.sigma not in usual:
        log_console.print(f"note: the paper has sigma in {usual}, not {recipe.sigma:g}", style="yellow")
    return recipe, network


def _held_out(data: str, split: str) -> Any:
    """Images that the training does not see; a folder of the user's own has none."""
    from sigmax.data import has_splits, load_source

    return load_source(data, split="tune" if split == "fit" else "test") if has_splits(data) else None


def _fabric(recipe: "Recipe", device: str, devices: int | None) -> "Fabric":
    """Where the training runs: as torchrun says where it started us, else on the devices of this machine."""
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
            f"expected devices that are here, got device={device}, devices={devices}: {reason}"
        ) from error
    fabric.launch()
    return fabric


@contextmanager
def _progress(recipe: "Recipe", is_first: bool) -> Iterator[Callable[["StepReport"], None] | None]:
    """A live line for people; for a log file, a line an epoch; nothing from processes that help the first."""
    if not is_first:
        yield None
        return
    recent: deque[tuple[StepReport, float]] = deque(maxlen=_WINDOW)

    def describe() -> str:
        reports = [report for report, _ in recent]
        spent = recent[-1][1] - recent[0][1]
        speed = sum(report.examples for report in reports[1:]) / spent if spent else 0.0
        loss, accuracy = (
            sum(getattr(report, name) for report in reports) / len(reports) for name in ("loss", "noisy_accuracy")
        )
        return (
            f"loss {loss:.3f}  noisy accuracy {100 * accuracy:.1f} %  "
            f"mean sigma {reports[-1].mean_sigma:.4f}  {speed:,.0f} images/s"
        )

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"))
    with Progress(
        *columns, TimeRemainingColumn(), console=log_console, transient=True, disable=not log_console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None, numbers="")
        epoch = 0

        def show(report: "StepReport") -> None:
            nonlocal epoch
            check_interrupt()
            if report.epoch != epoch and recent and not log_console.is_terminal:
                log_console.print(f"epoch {epoch}/{recipe.epochs}  {describe()}", highlight=False, soft_wrap=True)
            epoch = report.epoch
            recent.append((report, time.perf_counter()))
            bar.update(
                task,
                description=f"epoch {epoch}/{recipe.epochs}",
                completed=report.step,
                total=report.steps,
                numbers=describe(),
            )

        yield show
        if recent and not log_console.is_terminal:
            log_console.print(f"epoch {epoch}/{recipe.epochs}  {describe()}", highlight=False, soft_wrap=True)
