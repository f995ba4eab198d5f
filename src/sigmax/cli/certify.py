"""`sigmax certify`, `sigmax predict` and `sigmax replay`."""

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from sigmax.cli.console import confirm_long, note, out_console, print_runs, print_whole, resumable, say, track
from sigmax.cli.engines import EngineOptions, parse_shard
from sigmax.cli.groups import command
from sigmax.cli.options import ModelOptions, SamplingOptions, SearchOptions, make_router, parse_radii, parse_seed
from sigmax.errors import InvalidInputError
from sigmax.rounding import format_down

if TYPE_CHECKING:
    from sigmax.models import LoadedModel
    from sigmax.runs import CertificationSpec, Shard
    from sigmax.serve import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What a request contains beside model, search and sampling."""

    data: str = "digits"
    split: str = "test"
    n: int = 100_000
    tolerance: float = 0.0
    at: str | None = None
    runner_up: bool = False
    n_wrong: int | None = None
    family_alpha: float | None = None
    skip: int = 1
    max_inputs: int | None = None
    memory: str | None = None
    frozen: bool = False
    route: str | None = None


@command
def certify(
    model: ModelOptions,
    search: SearchOptions,
    sampling: SamplingOptions,
    request: RequestOptions,
    engine: EngineOptions,
    spec: Path | None = None,
    print_spec: bool = False,
    shard: str | None = None,
    out: Path | None = None,
    resume: bool = False,
    download: bool = False,
    yes: bool = False,
    as_json: bool = False,
) -> None:
    """Certify a data set: a class for each input, and a radius within which this class does not change.

    Examples:
    `sigmax certify sigmax-demo --data digits --n 10000 --max 100`

    `sigmax certify zoo:cifar10-cohen-0.25 --data cifar10 --skip 20 --per-input --out runs/ds`

    `sigmax certify zoo:cifar10-cohen-0.12 --expert zoo:cifar10-cohen-0.25 --data cifar10 --skip 20`

    `sigmax certify zoo:cifar10-cohen-0.12 --expert zoo:cifar10-cohen-0.50 --route runs/router --data cifar10`

    `sigmax certify zoo:cifar10-cohen-0.25 --data cifar10 --skip 20 --at 0.25,0.5,0.75,1.0`

    `sigmax certify --spec runs/ds/config.json --out runs/again`
    """
    from sigmax.engine import certify as execute
    from sigmax.runs import CONFIG, read_run, read_spec, read_table

    loaded = None
    if spec is None:
        asked, loaded = make_spec(model, search, sampling, request)
    elif (model, search, sampling, request) != (ModelOptions(), SearchOptions(), SamplingOptions(), RequestOptions()):
        raise InvalidInputError("expected --spec without other options of the request, got both; edit the file instead")
    else:
        asked = read_spec(spec)
    if shard is not None:
        asked = _shard_of(asked, shard, sampling)
    if print_spec:
        say(asked.to_json().rstrip())
        return
    if out is None:
        kinds = {"routed": asked.route, "experts": asked.experts, "per-input": asked.is_per_input, "fixed": True}
        kind = next(kind for kind, is_so in kinds.items() if is_so)
        part = f"-shard-{asked.shard.number}-of-{asked.shard.count}" if asked.shard else ""
        out = Path("runs") / f"{asked.model.short_name}-{asked.data.kind}-{kind}{part}"
    if resume and sampling.seed == "random" and (out / CONFIG).exists():
        # A run goes on with the seed that was drawn for it.
        asked = replace(asked, budget=replace(asked.budget, seed=read_spec(out / CONFIG).budget.seed))
    with resumable(f"the same command with --out {out} --resume"), engine.start(note) as where:
        execute(
            asked,
            out,
            track=track,
            engine=where,
            resume=resume,
            loaded=loaded,
            download=download,
            on_note=note,
            on_estimate=lambda seconds: confirm_long(seconds, yes=yes),
        )
    if asked.shard is not None:
        _show_shard(asked.shard, out, as_json)
        return
    radii = asked.budget.radii
    print_runs([(out.name, read_run(out))], radii=sorted({0.0, *radii}) if radii else None, as_json=as_json)
    if not as_json:
        say(f"table: {out / 'certificates.tsv'}")
        if asked.family_alpha is None:
            rows, alpha = len(read_table(out)), asked.budget.alpha
            say(
                f"alpha = {alpha:g} is per row: on average at most {rows * alpha:.2g} of {rows} rows are false; "
                "--family-alpha bounds the whole table"
            )


def _shard_of(spec: "CertificationSpec", text: str, sampling: SamplingOptions) -> "CertificationSpec":
    """The shard of a request; refused unless batch and seed are fixed, which all shards must share."""
    if spec.batch is None:
        raise InvalidInputError("expected --batch with --shard, got none; all shards need one, such as --batch 256")
    if sampling.seed == "random":
        raise InvalidInputError("expected the same --seed for all shards, got random; draw one number for all of them")
    return replace(spec, shard=parse_shard(text))


def _show_shard(shard: "Shard", out: Path, as_json: bool) -> None:
    from sigmax.runs import read_table

    rows = len(read_table(out))
    if as_json:
        out_console.print_json(json.dumps({"shard": str(shard), "rows": rows, "out": str(out)}))
        return
    say(f"shard {shard}: {rows} point certificates in {out}")
    say(f"when all {shard.count} are done: sigmax merge DIR… --out DIR")


def make_spec(
    model: ModelOptions, search: SearchOptions, sampling: SamplingOptions, request: RequestOptions
) -> tuple["CertificationSpec", "LoadedModel"]:
    """The request made of the options, and its loaded model, which fills in what the options leave open."""
    from sigmax.budget import Budget
    from sigmax.data.reference import DataReference
    from sigmax.plain import from_plain
    from sigmax.runs import CertificationSpec

    data = {"name": request.data, "split": request.split, "skip": request.skip, "max": request.max_inputs}
    data["preprocess"] = model.preprocess
    budget = Budget(
        n0=sampling.n0,
        alpha=sampling.alpha,
        seed=parse_seed(sampling.seed),
        n=request.n,
        tolerance=request.tolerance,
        radii=tuple(parse_radii("--at", request.at)) if request.at is not None else (),
        runner_up=request.runner_up,
        n_wrong=request.n_wrong,
    )
    reference = model.reference()
    loaded = reference.load()
    if request.route is not None and search.search is None and not search.per_input:
        search = replace(search, search="fixed")  # the router chooses instead
    spec = CertificationSpec(
        model=reference,
        data=from_plain(DataReference, data),
        search=search.make_search(loaded),
        experts=search.make_experts(reference),
        class_rule=search.class_rule,
        route=make_router(request.route, reference) if request.route is not None else None,
        noise=search.make_noise(loaded),
        exact=search.exact,
        budget=budget,
        family_alpha=request.family_alpha,
        batch=model.batch,
        memory=request.memory,
        frozen=request.frozen,
    )
    return spec, loaded


@command
def predict(
    model: ModelOptions,
    images: list[Path],
    search: SearchOptions,
    sampling: SamplingOptions,
    n: int = 1_000,
    memory: str | None = None,
    frozen: bool = False,
    as_json: bool = False,
) -> None:
    """Certify single images; with a memory, no answer contradicts an earlier one.

    Examples:
    `sigmax predict sigmax-demo three.png --memory answers.db`

    `sigmax predict sigmax-demo three.png --memory frozen.db --frozen`
    """
    import torch

    from sigmax.data.folder import read_image
    from sigmax.data.preprocessing import NONE, Preprocessing
    from sigmax.engine.prepare import smooth
    from sigmax.memory import CertificateMemory, FrozenMemory, Memory
    from sigmax.serve import Answerer

    spec, loaded = make_spec(model, search, sampling, RequestOptions(n=n, memory=memory, frozen=frozen))
    shape = loaded.input_shape
    resized = Preprocessing.parse(model.preprocess or loaded.preprocess or "none")
    channels = shape[0] if shape else 3 if resized != NONE else None  # as `imagenet:DIR` has them
    pixels = [read_image(path, resized, channels=channels) for path in images]
    for path, image in zip(images, pixels, strict=True):
        if shape and image.shape != shape:
            raise InvalidInputError(
                f"{path}: expected an image of shape {shape}, got {image.shape}; resize it, such as by --preprocess"
            )
    if resized == NONE and shape is None:
        size = " x ".join(map(str, pixels[0].shape))
        note(f"inputs are {size}, as in the file; --preprocess imagenet resizes and crops as for --data imagenet:DIR")
    smoothed, _, _ = smooth(spec, spec.model.classifier(loaded), pixels[0].shape, levels=255, on_note=note)
    answers: dict[str, Answer] = {}
    with ExitStack() as stack:
        opened: Memory | None = None
        if memory is not None:
            kind = FrozenMemory if frozen else CertificateMemory
            opened = stack.enter_context(kind.open(memory, norm=smoothed.noise.norm, fingerprint=smoothed.fingerprint))
        answerer = Answerer(smoothed, spec.budget, opened)
        cost = len(images) * smoothed.cost(spec.budget)
        advance = stack.enter_context(track("predicting", cost))
        for path, image in zip(images, pixels, strict=True):
            answers[str(path)] = answerer.answer(torch.from_numpy(image), on_progress=advance)
    if as_json:
        out_console.print_json(json.dumps([{"image": path, **asdict(answer)} for path, answer in answers.items()]))
        return
    names = loaded.card.class_names if loaded.card else ()
    view = Table("image", "label", "radius", "sigma", "answer", box=None)
    for image_file, given in answers.items():
        name = names[given.label] if given.label is not None and given.label < len(names) else given.label
        label = "abstains" if given.label is None else str(name)
        how = "point, no memory" if memory is None else f"{'recalled' if given.is_recalled else 'new'}, {given.rule}"
        view.add_row(image_file, label, format_down(given.radius), f"{given.sigma:.4g}", how)
    print_whole(view)
    if opened is not None and opened.digest is not None:
        say(f"by the frozen memory with digest {opened.digest}")


@command
def replay(run: Path, max_rows: int | None = None, data: str | None = None, as_json: bool = False) -> None:
    """Repeat a run and compare every row, byte for byte except for the times; exit with 1 if any row differs.

    Example: `sigmax replay runs/per-input --max 10`
    """
    from sigmax.engine import replay as repeat

    found = repeat(run, track=track, most=max_rows, data=data)
    if as_json:
        out_console.print_json(json.dumps(asdict(found)))
    else:
        for old, new in found.differing:
            say(f"was {old}\nnow {new}")
        what = "rows" if found.is_settled else "point certificates (the run shared a memory)"
        say(f"{found.rows - len(found.differing)} of {found.rows} {what} are the same")
    if found.differing:
        raise typer.Exit(1)
