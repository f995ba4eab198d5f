"""`sigmax certify` and `sigmax predict`."""

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sigmax.cli.console import out_console, print_runs, resumable, say, track
from sigmax.cli.options import (
    AlphaOption,
    ArchOption,
    Backend,
    BackendOption,
    BatchOption,
    BoundsOption,
    ClassesOption,
    DeviceOption,
    DownloadOption,
    JsonOption,
    ModelArgument,
    NormalizeOption,
    NormOption,
    OutputsOption,
    PerInputOption,
    SearchOption,
    SearchSamplesOption,
    SeedOption,
    SelectionOption,
    SigmaOption,
    StepSizeOption,
    StepsOption,
    load,
    make_search,
    make_smoothed,
    parse_radii,
)
from sigmax.errors import InvalidInputError
from sigmax.rounding import format_down


def certify(
    model: ModelArgument,
    data: Annotated[
        str,
        typer.Option(
            help="digits, mnist[:DIR], fashion-mnist[:DIR], cifar10[:DIR], imagenet:DIR, folder:DIR or "
            "arrays:FILE.npz. Names without DIR are looked for in $SIGMAX_DATA or the user's cache."
        ),
    ] = "digits",
    sigma: SigmaOption = None,
    per_input: PerInputOption = False,
    search: SearchOption = None,
    steps: StepsOption = None,
    search_samples: SearchSamplesOption = None,
    search_step_size: StepSizeOption = None,
    bounds: BoundsOption = None,
    norm: NormOption = None,
    n0: SelectionOption = 100,
    n: Annotated[int, typer.Option("--n", help="Samples that estimate the probability of the class.")] = 100_000,
    alpha: AlphaOption = 0.001,
    tolerance: Annotated[
        float,
        typer.Option(help="Stop an input where going on would gain less than this share of its radius; 0: never."),
    ] = 0.0,
    at: Annotated[
        str | None,
        typer.Option(
            help="Ask only whether the radius is at least each of these, such as 0.25,0.5,1.0, and stop an input as "
            "soon as that is known; --n is the most it gets. Not with --tolerance or --runner-up.",
        ),
    ] = None,
    runner_up: Annotated[
        bool, typer.Option("--runner-up", help="Bound the strongest other class too, for larger radii.")
    ] = False,
    n_wrong: Annotated[
        int | None,
        typer.Option(
            help="Samples for inputs whose selected class is wrong: it counts in no certified accuracy or ACR.",
            show_default="as --n",
        ),
    ] = None,
    skip: Annotated[int, typer.Option(help="Certify every SKIP-th input: 20 takes inputs 0, 20, 40, …")] = 1,
    max_inputs: Annotated[int | None, typer.Option("--max", help="Stop after so many inputs.")] = None,
    memory: Annotated[
        Path | None,
        typer.Option(help="Settle answers through this memory; by default per-input runs keep their own."),
    ] = None,
    seed: SeedOption = 0,
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/…")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    arch: ArchOption = None,
    normalize: NormalizeOption = None,
    outputs: OutputsOption = None,
    classes: ClassesOption = None,
    batch: BatchOption = None,
    backend: BackendOption = Backend.EAGER,
    device: DeviceOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
) -> None:
    """Certify a data set: the class of each input and a radius within which nothing changes it.

    Examples:
    `sigmax certify sigmax-demo --data digits --n 10000 --max 100`

    `sigmax certify zoo:cifar10-cohen-0.25 --data cifar10 --skip 20 --per-input --out runs/ds`

    `sigmax certify zoo:cifar10-cohen-0.25 --data cifar10 --skip 20 --at 0.25,0.5,0.75,1.0`
    """
    from sigmax.budget import Budget
    from sigmax.data import load_source
    from sigmax.engine import certify_source, check_data, run_notes
    from sigmax.models.checkpoint import MODEL_FILE, ZOO
    from sigmax.records import read_run

    if skip < 1 or (max_inputs is not None and max_inputs < 1):
        raise InvalidInputError(f"expected --skip >= 1 and --max >= 1, got skip={skip}, max={max_inputs}")
    radii = tuple(parse_radii("--at", at)) if at is not None else ()
    budget = Budget(
        n0=n0, n=n, alpha=alpha, seed=seed, tolerance=tolerance, radii=radii, runner_up=runner_up, n_wrong=n_wrong
    )
    source = load_source(data, download=download)
    loaded = load(model, arch, normalize, device)
    chosen = make_search(loaded, sigma, per_input, search, steps, search_samples, search_step_size, bounds)
    if out is None:
        kind = "per-input" if chosen.is_per_input else "fixed"
        place = Path(model).parent if Path(model).name == MODEL_FILE else Path(model)
        name = place.name if place.is_dir() else place.stem  # a folder such as cohen-0.25 has no suffix
        name = model.removeprefix(ZOO) if model.startswith(ZOO) else name or "model"
        out = Path("runs") / f"{name}-{data.partition(':')[0]}-{kind}"
    known = loaded.num_classes or classes or len(source.class_names)
    check_data(source, known, loaded.card)
    smoothed = make_smoothed(
        *(loaded, chosen, norm, outputs, batch, backend),
        classes=known if classes is None else classes,
        shape=source.shape,
        out=out,
    )
    with resumable(f"the same command with --out {out} --resume"):
        certify_source(
            smoothed,
            source,
            list(range(0, len(source), skip))[:max_inputs],
            out,
            budget=budget,
            track=track,
            memory=memory,
            resume=resume,
            notes=run_notes(
                smoothed,
                model=model,
                data=data,
                trained=loaded.card.method if loaded.card else None,
                trained_noise=loaded.card.noise if loaded.card else None,
            ),
        )
    print_runs([(out.name, read_run(out))], radii=sorted({0.0, *radii}) if radii else None, as_json=as_json)
    if not as_json:
        say(f"table: {out / 'certificates.tsv'}")


def predict(
    model: ModelArgument,
    images: Annotated[list[Path], typer.Argument(help="Image files, of the size that the model takes.")],
    sigma: SigmaOption = None,
    per_input: PerInputOption = False,
    search: SearchOption = None,
    steps: StepsOption = None,
    search_samples: SearchSamplesOption = None,
    search_step_size: StepSizeOption = None,
    bounds: BoundsOption = None,
    norm: NormOption = None,
    n0: SelectionOption = 100,
    n: Annotated[int, typer.Option("--n", help="Samples that decide.")] = 1_000,
    alpha: AlphaOption = 0.001,
    memory: Annotated[
        Path | None,
        typer.Option(help="Answer from this memory where it can, else certify and store the answer in it."),
    ] = None,
    seed: SeedOption = 0,
    arch: ArchOption = None,
    normalize: NormalizeOption = None,
    outputs: OutputsOption = None,
    classes: ClassesOption = None,
    batch: BatchOption = None,
    backend: BackendOption = Backend.EAGER,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the class of images; with a memory, never contradict a certificate given before.

    Example: `sigmax predict sigmax-demo three.png --memory answers.db`
    """
    import torch

    from sigmax.data.folder import read_image
    from sigmax.memory import CertificateMemory
    from sigmax.sampling import INDICES

    loaded = load(model, arch, normalize, device)
    chosen = make_search(loaded, sigma, per_input, search, steps, search_samples, search_step_size, bounds)
    shape = loaded.input_shape
    pixels = [read_image(path, channels=shape[0] if shape else None) for path in images]
    for path, image in zip(images, pixels, strict=True):
        if shape and image.shape != shape:
            raise InvalidInputError(f"{path}: expected an image of shape {shape}, got {image.shape}; resize it")
    smoothed = make_smoothed(*(loaded, chosen, norm, outputs, batch, backend), classes=classes, shape=pixels[0].shape)
    names = loaded.card.class_names if loaded.card else ()
    answers: list[_Answer] = []
    with ExitStack() as stack:
        settled = None
        if memory is not None:
            opened = CertificateMemory.open(memory, norm=smoothed.noise.norm, fingerprint=smoothed.fingerprint)
            settled = stack.enter_context(opened)
        advance = stack.enter_context(track("predicting", len(images) * (n0 + n + chosen.cost())))
        for path, image in zip(images, pixels, strict=True):
            x = torch.from_numpy(image)
            # An image names its own noise, so that its answer does not depend on what is asked beside it.
            index = int.from_bytes(blake2b(image.tobytes(), digest_size=4).digest(), "little") % INDICES
            sampling: dict[str, Any] = {"n0": n0, "n": n, "alpha": alpha, "seed": seed, "indices": [index]}
            if settled is None:
                (label,) = smoothed.predict(x[None], **sampling, on_progress=advance)
                answers.append(_Answer(image=str(path), label=label))
                continue
            answer = settled.lookup(x)
            if answer is None:
                (point,) = smoothed.certify(x[None], **sampling, on_progress=advance)
                answer = settled.settle(x, point)
            answers.append(_Answer(image=str(path), label=answer.label, radius=answer.radius, rule=answer.rule))
    if as_json:
        out_console.print_json(json.dumps([asdict(answer) for answer in answers]))
        return
    view = Table("image", "answer", *(["radius", "rule"] if memory else []), box=None)
    for given in answers:
        name = names[given.label] if given.label is not None and given.label < len(names) else given.label
        more = [] if given.radius is None else [format_down(given.radius), str(given.rule)]
        view.add_row(given.image, "abstains" if given.label is None else str(name), *more)
    out_console.print(view)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    image: str
    label: int | None
    radius: float | None = None  # None: predicted, not certified
    rule: str | None = None
