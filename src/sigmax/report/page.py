"""The report as one HTML page that needs nothing else: curves, tables, and every input behind them.

Numbers travel to the page as whole thousandths, rounded down here once: no browser can round a radius up.
"""

import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image

from sigmax import metrics
from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError
from sigmax.look import script_digest, whole_script, whole_style
from sigmax.named import name_of
from sigmax.report.canvas import COLOURS, family_styles
from sigmax.report.entries import Entry, joined
from sigmax.report.pairing import Pair
from sigmax.report.results import accuracy_table, format_signed, headlines, left_to_say, scope, settings_in_words
from sigmax.report.sections import Section, sections
from sigmax.report.tables import ResultTable, with_scope

PAGE_BYTES = 5_000_000  # no page is larger
PICTURE_BYTES = 1_800_000  # of all pictures together; base64 makes them a third larger
_MOST_PICTURES = 2_000
_PIXELWISE = 64  # images up to this side are shown pixel by pixel, larger ones as photographs
_SIDE, _LEAST_SIDE = 96, 48  # of a photograph on the page
_POINTS = 500  # of a curve, at most
_MOST_BANDS = 6  # in a chart: more would hide each other
_ASSETS = Path(__file__).parent / "page_assets"


def render_page(
    runs: Sequence[Entry],
    *,
    title: str,
    tables: Sequence[ResultTable],
    pairs: Sequence[Pair],
    notes: Sequence[str] = (),
    source: ImageSource | None = None,
) -> bytes:
    """A page of these runs for any browser, without a network, in less than 5 MB; `source` has their pictures."""
    pictured = [run for run in runs if source and len(run.table) and run.fits(source)]
    sprite = _make_sprite(source, pictured) if source and pictured and len(source.shape) == 3 else None
    script, parts = whole_script((_ASSETS / "page.js").read_text()), sections(runs)
    unsaid = [min((left_to_say(table.scope, part.runs) for part in parts), key=len) for table in tables]
    found = [(part, [pair for pair in pairs if pair.run in part.runs]) for part in parts]
    content = {
        "title": title,
        "tables": [(t, with_scope(t.caption, left)) for t, left in zip(tables, unsaid, strict=True)],
        "settings": [(run.name, settings_in_words(run)) for run in runs],
        "headlines": [
            (part.title if len(parts) > 1 else "", map(_unbroken, headlines(part, own))) for part, own in found
        ],
        "charts": [
            (part, scope(part.runs), accuracy_table(part, metrics.common_radii([run.table for run in part.runs])))
            for part in parts
        ],
        "sprite": sprite,
        "style": whole_style((_ASSETS / "page.css").read_text()),
        "script": script,
        "script_digest": script_digest(script),
    }
    environment = Environment(loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    names = dict.fromkeys(pictured, source.class_names if source else ())
    data: dict[str, Any] = {"charts": [_chart(part, runs) for part in parts], "sprite": sprite and sprite["layout"]}
    for step in (2**power for power in count()):
        shown = content | {"data": data | _rows(runs, pairs, names, step), "step": step, "notes": notes}
        page = environment.get_template("page.html").render(shown).encode()
        if len(page) <= PAGE_BYTES:
            return page
        if step > max(len(run.table) for run in runs):
            break
    raise InvalidInputError(f"expected a page of at most {PAGE_BYTES} bytes, got {len(page)}; give fewer runs")


def _unbroken(said: str) -> str:
    """The same with formulas that the end of a line does not part."""
    return re.sub(r" ([=<→]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", said)


def _chart(section: Section, runs: Sequence[Entry]) -> dict[str, Any]:
    """The curves of a section at radii in thousandths, in steps that axes like: 1, 2, 5, 10, 20 and so on."""
    end = 1_050 * max(float(run.table.radius.max(initial=0.0)) for run in section.runs) or 1_000.0
    step = next(s for power in count() for s in (10**power, 2 * 10**power, 5 * 10**power) if s * _POINTS >= end)
    radii = np.arange(0, math.ceil(end / step) + 1) * step
    bands = [metrics.accuracy_band(run.table, radii / 1_000) for run in section.runs[: _MOST_BANDS + 1]]
    ends = [[np.rint(1_000 * end).astype(int).tolist() for end in band] for band in bands]
    return {
        "norm": section.norm,
        "runs": [runs.index(run) for run in section.runs],
        "radii": radii.tolist(),
        "counts": [metrics.count_certified(run.table, radii / 1_000).tolist() for run in section.runs],
        "bands": ends if len(ends) <= _MOST_BANDS else None,
        "styles": _styles(section),
    }


def _styles(section: Section) -> list[tuple[int, int]]:
    """For each run the place of its colour, as in the figures, and of its dashes, which differ within a colour."""
    families = {run: family for (family, _), members in section.series.items() for run in members}
    colours = family_styles(sorted(set(families.values())))
    places = [COLOURS.index(colours[families[run]]["color"]) for run in section.runs]
    return [(place, places[:i].count(place)) for i, place in enumerate(places)]


def _rows(
    runs: Sequence[Entry], pairs: Sequence[Pair], names: Mapping[Entry, Sequence[str]], step: int
) -> dict[str, Any]:
    """One input in `step` of each run, to look at one by one; inputs that several runs share are told once."""
    inputs: dict[tuple[str, bytes, bytes], dict[str, Any]] = {}
    # Rows are compared one by one: both runs must have the same inputs in the same order.
    baselines = {pair.run: pair.baseline for pair in pairs if _order(pair.run) == _order(pair.baseline)}
    found = []
    for run in runs:
        key, baseline = (run.data, *_order(run)), baselines.get(run)
        idx, label = run.table.idx[::step].tolist(), run.table.label[::step].tolist()
        inputs.setdefault(key, {"idx": idx, "label": label, "classes": names.get(run), "is_pictured": run in names})
        places = {"inputs": list(inputs).index(key), "fixed": runs.index(baseline) if baseline else None}
        found.append(places | _run_data(run, baseline, step))
    return {"inputs": list(inputs.values()), "runs": found}


def _order(run: Entry) -> tuple[bytes, bytes]:
    return run.table.idx.tobytes(), run.table.label.tobytes()


def _run_data(run: Entry, baseline: Entry | None, step: int) -> dict[str, Any]:
    table, rules = run.table, sorted(set(run.table.rule))
    is_same = np.array_equal(table.point_radius, table.radius), np.array_equal(table.point_predict, table.predict)
    gain = metrics.gained_radii(table, baseline.table) if baseline else np.zeros(0)
    mean = format_signed(float(gain.mean()) if len(gain) else 0.0)
    compared = {"gained": int((gain > 0).sum()), "lost": int((gain < 0).sum()), "mean": mean}
    return {
        "name": run.name,
        "kind": joined(metrics.kind_of_answers(table), run.noise, run.special_backend),
        "rows": len(table),
        "is_per_input": run.is_per_input,
        "sigma0": None if run.sigma0 is None else round(1e6 * run.sigma0),
        "noise": name_of(type(run.spec.noise)) if run.spec else f"l{table.norm}",  # a log had the usual one of its norm
        "predict": table.predict[::step].tolist(),
        "radius": _thousandths(table.radius[::step]),
        "sigma": _millionths(table.sigma[::step]),
        "point_radius": None if is_same[0] else _thousandths(table.point_radius[::step]),
        "point_predict": None if is_same[1] else table.point_predict[::step].tolist(),
        "rules": rules,
        "rule": None if len(rules) < 2 else [rules.index(rule) for rule in table.rule[::step]],
        "gain": _thousandths(gain[::step]) if baseline else None,
        "change": np.sign(gain[::step]).astype(int).tolist() if baseline else None,
        "compared": compared if baseline else None,
    }


def _thousandths(values: NDArray[np.float64]) -> list[int]:
    """Whole thousandths, rounded down exactly as `format_down` does."""
    ratios = (value.as_integer_ratio() for value in values.tolist())
    return [1_000 * numerator // denominator for numerator, denominator in ratios]


def _millionths(sigma: NDArray[np.float64]) -> list[int | None] | None:
    """Whole millionths, to the nearest; None where the log does not say."""
    whole = [None if math.isnan(value) else round(1e6 * value) for value in sigma.tolist()]
    return whole if any(value is not None for value in whole) else None


def _make_sprite(source: ImageSource, runs: Sequence[Entry]) -> dict[str, Any]:
    """Pictures in one image, of as many inputs as fit: photographs shrink first, then some inputs go without."""
    inputs = np.unique(np.concatenate([run.table.idx for run in runs]))
    largest = max(source.shape[1:])
    is_pixelwise = largest <= _PIXELWISE
    side, kept = largest if is_pixelwise else _SIDE, inputs[:: math.ceil(len(inputs) / _MOST_PICTURES)]
    while True:
        height, width = (max(1, round(side / largest * length)) for length in source.shape[1:])
        columns = math.ceil(math.sqrt(len(kept)))
        layout = {"columns": columns, "rows": math.ceil(len(kept) / columns), "width": width, "height": height}
        content = _draw_grid(source, kept, columns, (width, height), is_pixelwise)
        excess = len(content) / PICTURE_BYTES
        if excess <= 1:
            break
        if not is_pixelwise and side > _LEAST_SIDE:
            side = max(_LEAST_SIDE, int(side / math.sqrt(excess)))
        else:
            kept = kept[:: math.ceil(excess)]
    return {
        "url": f"data:image/{'png' if is_pixelwise else 'jpeg'};base64,{b64encode(content).decode()}",
        "is_pixelwise": is_pixelwise,
        "wanted": len(inputs),
        "layout": layout
        | {"inputs": kept.tolist(), "is_partial": len(kept) < len(inputs), "is_grey": source.shape[0] != 3},
    }


def _draw_grid(
    source: ImageSource, inputs: NDArray[np.int64], columns: int, size: tuple[int, int], is_pixelwise: bool
) -> bytes:
    (width, height), file = size, BytesIO()
    grid = Image.new("RGB", (columns * width, math.ceil(len(inputs) / columns) * height))
    for start in range(0, len(inputs), 64):  # bounds the memory that large images take
        for place, pixels in enumerate(source.images(inputs[start : start + 64].tolist()), start=start):
            # Three channels as they are; of any other number, their mean.
            shown = pixels if len(pixels) == 3 else np.repeat(pixels.mean(axis=0, keepdims=True), 3, axis=0)
            image = Image.fromarray(np.rint(255 * shown.clip(0, 1)).astype(np.uint8).transpose(1, 2, 0).copy())
            grid.paste(image.resize(size, Image.Resampling.BOX), (place % columns * width, place // columns * height))
    # A photograph is not looked at pixel by pixel: as JPEG, a tenth of the bytes shows it as well.
    options: dict[str, Any] = {"format": "PNG"} if is_pixelwise else {"format": "JPEG", "quality": 80, "subsampling": 0}
    (grid if source.shape[0] == 3 else grid.convert("L")).save(file, optimize=is_pixelwise, **options)
    return file.getvalue()
