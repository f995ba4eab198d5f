"""The report as one HTML page that needs nothing else: curves, tables, and every input behind them.

Numbers travel to the page as whole thousandths, rounded down here once: no browser can round a radius up.
"""

import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, final

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image

from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError
from sigmax.records import CertificateTable, Run
from sigmax.report.grouping import Pair, fits, inputs_of, is_per_input
from sigmax.report.grouping import pairs as find_pairs
from sigmax.report.metrics import (
    abstentions,
    certified_accuracy,
    common_radii,
    count_certified,
    counted_radii,
    kind_of_answers,
)
from sigmax.report.results import describe_inputs, format_signed, run_acr, settings_of
from sigmax.report.tables import ResultTable
from sigmax.rounding import format_nearest

PAGE_BYTES = 5_000_000  # no page is larger
PICTURE_BYTES = 1_800_000  # of all pictures together; base64 makes them a third larger
_MOST_PICTURES = 2_000
_PIXELWISE = 64  # images up to this side are shown pixel by pixel, larger ones as photographs
_SIDE, _LEAST_SIDE = 96, 48  # of a photograph on the page
_POINTS = 500  # of a curve, at most
_UNKNOWN = "not said"
_ASSETS = Path(__file__).parent / "page_assets"


def render_page(
    runs: Sequence[Run],
    *,
    title: str,
    tables: Sequence[ResultTable],
    notes: Sequence[str] = (),
    source: ImageSource | None = None,
    pairs: Sequence[Pair] | None = None,
) -> bytes:
    """A page that shows these runs in any browser, without a network, in less than 5 MB.

    Args:
        runs: What to show, in this order.
        title: Its heading.
        tables: Shown as they are.
        notes: What a reader must know first, such as what is scaled down.
        source: Where the pictures and class names of the inputs are; runs over other data go without.
        pairs: Which runs are compared input by input; by default those that `grouping.pairs` finds.
    """
    if not runs:
        raise InvalidInputError("expected at least one run for the page, got none")
    report = _Report(runs, source, find_pairs(runs) if pairs is None else pairs)
    step = 1
    while len(page := _render(report, step, title, tables, notes)) > PAGE_BYTES:
        if step > max(len(run.table) for run in runs):
            raise InvalidInputError(
                f"expected a page of at most {PAGE_BYTES} bytes, got {len(page)}; give fewer tables or runs"
            )
        step *= 2
    return page


def _render(report: "_Report", step: int, title: str, tables: Sequence[ResultTable], notes: Sequence[str]) -> bytes:
    """The page with one input in `step` to look at one by one; curves and tables are of all."""
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    script = (_ASSETS / "page.js").read_text()
    return (
        environment.get_template("page.html")
        .render(
            title=title,
            notes=[*notes, *report.limits(step)],
            tables=tables,
            settings=_settings(report.runs),
            charts=report.charts,
            data=report.data(step),
            sprite=report.sprite,
            style=(_ASSETS / "page.css").read_text(),
            script=script,
            script_digest=b64encode(sha256(script.encode()).digest()).decode(),
        )
        .encode()
    )


@final
class _Report:
    """What the runs say to the page; inputs that several runs share are told once."""

    def __init__(self, runs: Sequence[Run], source: ImageSource | None, pairs: Sequence[Pair]) -> None:
        self.runs = runs
        self._source = source
        self._pairs = pairs
        first: dict[tuple[str | None, bytes, bytes], Run] = {}
        rows = [_rows_of(run) for run in runs]
        for key, run in zip(rows, runs, strict=True):
            first.setdefault(key, run)
        places = {key: place for place, key in enumerate(first)}
        self._inputs = list(first.values())  # the first run of each set of inputs
        self._inputs_of = [places[key] for key in rows]  # of each run: which set
        if source is not None and not any(map(self._is_pictured, self._inputs)):
            raise InvalidInputError(
                f"expected the data that a run was made with, got {source.name}, which has other labels; "
                "give the right one, or none"
            )

    @cached_property
    def sprite(self) -> "_Sprite | None":
        """All pictures in one image."""
        if self._source is None or len(self._source.shape) != 3:
            return None
        inputs = np.unique(np.concatenate([run.table.idx for run in self._inputs if self._is_pictured(run)]))
        return _make_sprite(self._source, inputs) if len(inputs) else None

    @cached_property
    def charts(self) -> list[dict[str, Any]]:
        """Curves, together where they can be compared: in one norm, over the same inputs."""
        groups: dict[tuple[int, str | None, bytes], list[int]] = {}
        for number, run in enumerate(self.runs):
            groups.setdefault(inputs_of(run), []).append(number)
        return [self._chart(norm, numbers) for (norm, _, _), numbers in groups.items()]

    def _chart(self, norm: int, numbers: list[int]) -> dict[str, Any]:
        tables = [self.runs[number].table for number in numbers]
        end = 1.05 * max(float(table.radius.max(initial=0.0)) for table in tables) or 1.0
        step = next(s for s in _round_numbers() if s * _POINTS >= 1_000 * end)
        radii = np.arange(0, math.ceil(1_000 * end / step) + 1) * step
        few = common_radii(tables)
        shares = [certified_accuracy(table, few) for table in tables]
        rows = [(table.name, kind_of_answers(table), share) for table, share in zip(tables, shares, strict=True)]
        if len(tables) > 1:
            rows.append(("envelope", "best of these", np.max(shares, axis=0)))
        return {
            "norm": norm,
            "title": f"l{norm} radius, {describe_inputs([self.runs[number] for number in numbers])}",
            "runs": numbers,
            "radii": radii.tolist(),
            "counts": [count_certified(table, radii / 1_000).tolist() for table in tables],
            "few": [f"{radius:g}" for radius in few],
            "rows": [(name, kind, [format_nearest(value) for value in share.tolist()]) for name, kind, share in rows],
        }

    def data(self, step: int) -> dict[str, Any]:
        """What the page's script reads."""
        return {
            "charts": [{key: chart[key] for key in ("norm", "runs", "radii", "counts")} for chart in self.charts],
            "inputs": [self._input_data(run, step) for run in self._inputs],
            "runs": [self._run_data(number, step) for number in range(len(self.runs))],
            "sprite": self.sprite.layout() if self.sprite else None,
        }

    def limits(self, step: int) -> list[str]:
        """What the page leaves out for its size."""
        said = []
        if step > 1:
            said.append(
                f"To keep the page small, one input in {step} can be looked at below; curves are of all inputs."
            )
        if self.sprite and len(self.sprite.inputs) < self.sprite.wanted:
            pictures, inputs = len(self.sprite.inputs), self.sprite.wanted
            said.append(f"To keep the page small, {pictures:,} of {inputs:,} inputs have a picture, spread evenly.")
        return said

    def _input_data(self, run: Run, step: int) -> dict[str, Any]:
        table, is_pictured = run.table, self._is_pictured(run)
        return {
            "idx": table.idx[::step].tolist(),
            "label": table.label[::step].tolist(),
            "classes": list(self._source.class_names) if self._source and is_pictured else None,
            "is_pictured": is_pictured,
        }

    def _run_data(self, number: int, step: int) -> dict[str, Any]:
        run, table = self.runs[number], self.runs[number].table
        rules = sorted(set(table.rule))
        fixed = self._baseline_of(run)
        gain = None if fixed is None else counted_radii(table) - counted_radii(self.runs[fixed].table)
        has_point_radii = not np.array_equal(table.point_radius, table.radius)
        has_point_answers = not np.array_equal(table.point_predict, table.predict)
        return {
            "name": run.name,
            "kind": kind_of_answers(table),
            "norm": table.norm,
            "rows": len(table),
            "inputs": self._inputs_of[number],
            "is_per_input": is_per_input(run),
            "predict": table.predict[::step].tolist(),
            "radius": _thousandths(table.radius[::step]),
            "sigma": _millionths(table.sigma[::step]),
            "point_radius": _thousandths(table.point_radius[::step]) if has_point_radii else None,
            "point_predict": table.point_predict[::step].tolist() if has_point_answers else None,
            "rules": rules,
            "rule": None if len(rules) < 2 else [rules.index(rule) for rule in table.rule[::step]],
            "fixed": fixed,
            "gain": None if gain is None else _thousandths(gain[::step]),
            "change": None if gain is None else np.sign(gain[::step]).astype(int).tolist(),
            "compared": None if gain is None else _compared(gain),
        }

    def _baseline_of(self, run: Run) -> int | None:
        """The run that it is compared with, where both have the same inputs."""
        baselines = [pair.baseline for pair in self._pairs if pair.run is run]
        places = [i for i, other in enumerate(self.runs) if any(other is found for found in baselines)]
        return next((i for i in places if _rows_of(run)[1:] == _rows_of(self.runs[i])[1:]), None)

    def _is_pictured(self, run: Run) -> bool:
        return self._source is not None and len(run.table) > 0 and fits(self._source, run)


def _rows_of(run: Run) -> tuple[str | None, bytes, bytes]:
    """Data set and inputs, row by row: runs that have these in common share the list of inputs on the page."""
    return run.config.get("data"), run.table.idx.tobytes(), run.table.label.tobytes()


def _settings(runs: Sequence[Run]) -> dict[str, Any]:
    """The table of runs, without the columns that no run has anything to say in."""
    rows = [_row_of_settings(run) for run in runs]
    missing = [key for key in rows[0] if all(row[key] == _UNKNOWN for row in rows)]
    return {"rows": rows, "columns": [key for key in rows[0] if key not in missing], "missing": missing}


def _row_of_settings(run: Run) -> dict[str, str]:
    return settings_of(run, _UNKNOWN) | {
        "sigma": _sigma_range(run.table) or _UNKNOWN,
        "ACR": format_nearest(run_acr(run)),
        "abstained": format_nearest(abstentions(run.table)),
    }


def _sigma_range(table: CertificateTable) -> str | None:
    levels = np.unique(table.sigma[~np.isnan(table.sigma)])
    if not len(levels):
        return None
    low, high = format_nearest(levels[0]), format_nearest(levels[-1])
    return low if low == high else f"{low} to {high}"


def _compared(gain: NDArray[np.float64]) -> dict[str, Any]:
    mean = float(gain.mean()) if len(gain) else 0.0
    return {"gained": int((gain > 0).sum()), "lost": int((gain < 0).sum()), "mean": format_signed(mean)}


def _thousandths(values: NDArray[np.float64]) -> list[int]:
    """Whole thousandths, rounded down exactly as `format_down` does."""
    ratios = (value.as_integer_ratio() for value in values.tolist())
    return [1_000 * numerator // denominator for numerator, denominator in ratios]


def _millionths(sigma: NDArray[np.float64]) -> list[int | None] | None:
    """Whole millionths, to the nearest; None where the log does not say."""
    if np.isnan(sigma).all():
        return None
    return [None if math.isnan(value) else round(1e6 * value) for value in sigma.tolist()]


def _round_numbers() -> Iterator[int]:
    """Steps that axes like: 1, 2, 5, 10, 20, 50 and so on."""
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Sprite:
    """Pictures in a grid, row by row, in one image."""

    inputs: NDArray[np.int64]  # whose pictures these are
    wanted: int  # inputs, those without a picture too
    columns: int
    rows: int
    width: int  # of one picture
    height: int
    is_pixelwise: bool
    content: bytes

    def layout(self) -> dict[str, Any]:
        """Where the page finds each picture."""
        return {
            "inputs": self.inputs.tolist(),
            "is_partial": len(self.inputs) < self.wanted,
            "columns": self.columns,
            "rows": self.rows,
            "width": self.width,
            "height": self.height,
        }

    def url(self) -> str:
        """The image itself, as an address."""
        kind = "png" if self.is_pixelwise else "jpeg"
        return f"data:image/{kind};base64,{b64encode(self.content).decode()}"


def _make_sprite(source: ImageSource, inputs: NDArray[np.int64]) -> _Sprite:
    """Pictures of as many inputs as fit: photographs shrink first, then some inputs go without."""
    _, height, width = source.shape
    is_pixelwise = max(height, width) <= _PIXELWISE
    side = max(height, width) if is_pixelwise else _SIDE
    kept = inputs[:: math.ceil(len(inputs) / _MOST_PICTURES)]
    while True:
        scale = side / max(height, width)
        size = (max(1, round(scale * width)), max(1, round(scale * height)))
        columns = math.ceil(math.sqrt(len(kept)))
        rows = math.ceil(len(kept) / columns)
        content = _encode(_draw_grid(source, kept, columns, rows, size), is_pixelwise)
        excess = len(content) / PICTURE_BYTES
        if excess <= 1:
            break
        if not is_pixelwise and side > _LEAST_SIDE:
            side = max(_LEAST_SIDE, int(side / math.sqrt(excess)))
        else:
            kept = kept[:: math.ceil(excess)]
    return _Sprite(
        inputs=kept,
        wanted=len(inputs),
        columns=columns,
        rows=rows,
        width=size[0],
        height=size[1],
        is_pixelwise=is_pixelwise,
        content=content,
    )


def _draw_grid(
    source: ImageSource, inputs: NDArray[np.int64], columns: int, rows: int, size: tuple[int, int]
) -> Image.Image:
    width, height = size
    grid = Image.new("RGB", (columns * width, rows * height))
    for start in range(0, len(inputs), 64):  # bounds the memory that large images take
        for place, pixels in enumerate(source.images(inputs[start : start + 64].tolist()), start=start):
            corner = (place % columns * width, place // columns * height)
            grid.paste(_picture(pixels).resize(size, Image.Resampling.BOX), corner)
    return grid if source.shape[0] == 3 else grid.convert("L")


def _picture(pixels: NDArray[np.float32]) -> Image.Image:
    """An image of 1 or 3 channels as it is; of any other number, their mean."""
    shown = pixels if len(pixels) == 3 else np.repeat(pixels.mean(axis=0, keepdims=True), 3, axis=0)
    return Image.fromarray(np.rint(255 * shown.clip(0, 1)).astype(np.uint8).transpose(1, 2, 0).copy())


def _encode(grid: Image.Image, is_pixelwise: bool) -> bytes:
    file = BytesIO()
    if is_pixelwise:
        grid.save(file, "PNG", optimize=True)
    else:
        # A photograph is not looked at pixel by pixel: a tenth of the bytes shows it as well.
        grid.save(file, "JPEG", quality=80, subsampling=0)
    return file.getvalue()
