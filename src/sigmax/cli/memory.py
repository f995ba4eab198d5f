"""`sigmax memory …`: inspect, copy and freeze certificate memories."""

import json
from collections import Counter, deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from sigmax.cli.console import out_console, resumable, say, track
from sigmax.cli.groups import command
from sigmax.errors import InvalidInputError
from sigmax.rounding import format_down

if TYPE_CHECKING:
    from sigmax.data.source import Images
    from sigmax.memory import Entry

_ENDS = 3  # entries shown at each end


@command
def memory_show(place: str, as_json: bool = False) -> None:
    """Show what a memory holds: its owner, labels, radii, and its first and last entries.

    Example: `sigmax memory show runs/per-input`
    """
    from sigmax.memory import CertificateMemory

    with CertificateMemory.existing(_memory_of(place)) as memory:
        freeze = memory.frozen
        labels: Counter[int | None] = Counter()
        rules: Counter[str] = Counter()
        radii: list[float] = []
        first: list[Entry] = []
        last: deque[Entry] = deque(maxlen=_ENDS)
        for entry in memory.entries():
            answer = entry.answer
            labels[answer.label] += 1
            rules[answer.rule] += 1
            radii.append(answer.radius)
            (first if len(first) < _ENDS else last).append(entry)
        ends = [
            {"entry": entry.id, "label": entry.answer.label, "radius": entry.answer.radius, "rule": entry.answer.rule}
            for entry in (*first, *last)
        ]
        found = {
            "place": memory.place,
            "entries": len(radii),
            "norm": memory.norm,
            "fingerprint": memory.fingerprint,
            "frozen": None if freeze is None else {"digest": freeze.digest, "sigma": freeze.sigma},
            "labels": {str(label): count for label, count in sorted(labels.items(), key=str)},
            "rules": dict(rules.most_common()),
            "radii": [min(radii), max(radii)] if radii else None,
            "ends": ends,
        }
    if as_json:
        out_console.print_json(json.dumps(found))
        return
    say(f"{memory.place}: {_counted(len(radii))}, l{memory.norm} balls, fingerprint {memory.fingerprint}")
    say("live" if freeze is None else f"frozen with sigma {freeze.sigma:g}, digest {freeze.digest}")
    if radii:
        say(f"radii:  {format_down(min(radii))} to {format_down(max(radii))}")
        say("labels: " + ", ".join(f"{label} ({count:,})" for label, count in sorted(labels.items(), key=str)))
        say("rules:  " + ", ".join(f"{rule} ({count:,})" for rule, count in rules.most_common()))
        view = Table("entry", "label", "radius", "rule", box=None)
        for shown in ends:
            view.add_row(*(str(value) for value in shown.values()))
        out_console.print(view)


@command
def memory_explain(
    place: str,
    image: Path | None = None,
    data: str | None = None,
    split: str = "test",
    index: int | None = None,
    as_json: bool = False,
) -> None:
    """Explain the answer for an image: which entries decided, in the order in which they were settled.

    Examples:
    `sigmax memory explain answers.db three.png`

    `sigmax memory explain runs/per-input --data cifar10 --index 40`
    """
    from sigmax.memory import CertificateMemory

    x = _image(image, data, split, index)
    with CertificateMemory.existing(_memory_of(place)) as memory:
        found = memory.explain(x)
    if as_json:
        out_console.print_json(json.dumps(asdict(found)))
        return
    answer = found.answer
    if answer is None:
        say("no entry contains it: sampling would have to say")
    else:
        settled = "it would be inherited" if found.entry is None else f"entry {found.entry}, {answer.rule}"
        say(f"label {answer.label}, radius {format_down(answer.radius)}: {settled}")
    if found.influences:
        view = Table("entry", "label", "radius", "distance", "effect", box=None)
        for one in found.influences:
            what = f"contains it, {format_down(one.limit)} deep" if one.effect == "contains" else ""
            what = what or f"leaves room for {format_down(one.limit)}"
            numbers = [format_down(one.radius), format_down(one.distance)]
            view.add_row(str(one.id), str(one.label), *numbers, what + (", which decided" if one.is_decisive else ""))
        out_console.print(view)
    elif found.entry is not None:
        say("no earlier entry took part: the radius is what sampling certified")


def _image(image: Path | None, data: str | None, split: str, index: int | None) -> "Images":
    """The image of a file, or of a data set."""
    from sigmax.data.folder import read_image
    from sigmax.data.reference import DataReference
    from sigmax.plain import from_plain

    if image is not None and data is None and index is None:
        return read_image(image)
    if image is not None or data is None or index is None:
        raise InvalidInputError("expected an image file, or --data and --index, got neither or both; name one image")
    source = from_plain(DataReference, {"name": data, "split": split}).load()
    if not 0 <= index < len(source):
        raise InvalidInputError(f"expected --index from 0 to {len(source) - 1}, got {index}")
    (pixels,) = source.images([index])
    made: Images = pixels
    return made


@command
def memory_permute(
    run: Path, orders: int = 1_000, seed: int = 0, data: str | None = None, as_json: bool = False
) -> None:
    """Settle the points of a run in random orders, and count the answers that ever differ. Reports show the count.

    Example: `sigmax memory permute runs/per-input`
    """
    from sigmax.engine.orders import permute_run

    with track("settling in other orders", orders) as advance:
        found = permute_run(run, orders=orders, seed=seed, data=data, on_progress=advance)
    if as_json:
        out_console.print_json(json.dumps(asdict(found)))
        return
    say(
        f"{found.inputs:,} inputs in {found.orders:,} orders: {found.answers} answers ever differ "
        f"({found.labels} labels, {found.radii} radii, by at most {found.largest:.3g})"
    )
    say(f"{found.near} of the inputs have a ball that may meet another; only these can differ")


@command
def memory_copy(source: str, target: str, as_json: bool = False) -> None:
    """Copy a memory into a new file or database, entry for entry; the copy is live.

    Example: `sigmax memory copy answers.db postgresql://me@localhost/answers`
    """
    from sigmax.errors import without_password
    from sigmax.memory import CertificateMemory, copy_memory

    place = _memory_of(source)
    with CertificateMemory.existing(place) as memory:
        total = len(memory)
    with resumable("the same command"), track("copying entries", total) as advance:
        count = copy_memory(place, target, on_progress=advance)
    if as_json:
        out_console.print_json(json.dumps({"entries": count}))
    else:
        say(f"{count:,} entries copied to {without_password(target)}")


@command
def memory_check(place: str, as_json: bool = False) -> None:
    """Check that no two entries of a memory contradict each other; exit with 1 if some do.

    Example: `sigmax memory check runs/per-input`
    """
    from sigmax.memory import CertificateMemory

    with CertificateMemory.existing(_memory_of(place)) as memory:
        total = len(memory)
        with track("checking pairs", total) as advance:
            found = list(memory.contradictions(on_progress=advance))
    if as_json:
        out_console.print_json(json.dumps({"entries": total, "contradictions": found}))
    elif found:
        for first, second in found[:20]:
            out_console.print(f"entries {first} and {second} have different labels and share a point")
        out_console.print(f"{len(found)} contradictions among {_counted(total)}", style="red")
    else:
        out_console.print(f"{_counted(total)}, l{memory.norm}: no two with different labels share a point")
    if found:
        raise typer.Exit(1)


@command
def memory_freeze(place: str, sigma: float | None = None, out: str | None = None, as_json: bool = False) -> None:
    """Freeze a memory: a fixed classifier made of the stored balls, and of one sigma outside them.

    Its answers do not depend on earlier questions. Every answer names the digest.

    Example: `sigmax memory freeze runs/per-input --out frozen.db`
    """
    from sigmax.memory import CertificateMemory, copy_memory
    from sigmax.runs import CONFIG, read_spec

    if sigma is None and (Path(place) / CONFIG).exists():
        sigma = read_spec(Path(place) / CONFIG).search.initial
    if sigma is None:
        raise InvalidInputError(f"expected --sigma, got none; only a run folder records it, and {place} is not one")
    source = _memory_of(place)
    if out is not None:
        with track("copying entries", 1) as advance:
            copy_memory(source, out, on_progress=advance)
    with CertificateMemory.existing(out or source) as memory:
        frozen = memory.freeze(sigma=sigma)
    if as_json:
        out_console.print_json(json.dumps({"digest": frozen.digest, "entries": len(frozen), "sigma": sigma}))
    else:
        say(f"frozen: {frozen.place}, {_counted(len(frozen))}, sigma {sigma:g} outside their balls")
        say(f"digest: {frozen.digest}")
        say(f"next:   sigmax certify MODEL --sigma {sigma:g} --memory {frozen.place} --frozen")


def _counted(entries: int) -> str:
    return f"{entries:,} {'entry' if entries == 1 else 'entries'}"


def _memory_of(place: str) -> str:
    """The memory of a run folder; any other place is returned unchanged."""
    from sigmax.runs import CONFIG, MEMORY, read_spec

    folder = Path(place)
    if "://" in place or not folder.is_dir():
        return place
    if not (folder / MEMORY).exists() and (folder / CONFIG).exists():
        return read_spec(folder / CONFIG).memory or str(folder / MEMORY)
    return str(folder / MEMORY)
