"""Settings by name, from presets.toml: those of the paper, those for two cores, and the defaults of data sets."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sigmax.errors import InvalidInputError, did_you_mean
from sigmax.models import ModelCard, Normalize
from sigmax.noise import find_noise
from sigmax.plain import from_plain, to_plain
from sigmax.train.recipe import Recipe

_SEARCH = ("warmup", "search_steps", "search_samples", "step_size")  # settings of per-input sigma alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings as `make_recipe` takes them, and an objective with its options."""

    data: str  # the data set it is for
    says: str = ""
    settings: Mapping[str, Any]
    method: str = "cohen"
    options: Mapping[str, Any] = field(default_factory=dict)
    options_at: Mapping[float, Mapping[str, Any]] = field(default_factory=dict)  # options that depend on sigma
    sigmas: tuple[float, ...] = ()  # those of the paper; empty: any
    fine_tunes: bool = False  # it starts from a trained network


@cache
def _file() -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def presets() -> dict[str, Preset]:
    """The presets by name."""
    return {name: _read(name, table) for name, table in _file()["presets"].items()}


def _read(name: str, table: Mapping[str, Any]) -> Preset:
    """A preset, or the defaults of a data set, with the parts that it uses merged into its settings."""
    own = dict(table)
    parts = [_file()["parts"][part] for part in own.pop("uses", [])] + [own.pop("settings", {})]
    settings = {key: value for part in parts for key, value in part.items()}
    return from_plain(Preset, {"data": name, **own, "settings": settings}, where=name)


def make_recipe(
    data: str,
    given: Mapping[str, Any],
    *,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    preset: str | None = None,
    inherited: Mapping[str, Any] | None = None,
) -> Recipe:
    """The recipe for these settings: `given` first, then `inherited`, then those of the preset or of the data set.

    Settings are the fields of a recipe. Two of them have short forms: `noise` (or `norm`) may be a name, and
    `per_input`, `warmup`, `search_steps`, `search_samples`, `step_size` and `sigma_range` make the `sigma_source`.
    `inherited` is what the network to start from decides; None: there is none.
    """
    kind = data.partition(":")[0]
    chosen = find_preset(preset, kind) if preset else _read(kind, _file()["defaults"].get(kind, {}))
    if chosen.fine_tunes and inherited is None:
        raise InvalidInputError(f"expected --from NETWORK with preset {preset}, which fine-tunes, got none")
    given = {"noise" if name == "norm" else name: value for name, value in given.items()}
    settings = _merge(chosen.settings, inherited or {}, given)
    if isinstance(settings.get("noise"), str):
        settings["noise"] = find_noise(settings["noise"])
    source = _take_sigma_source(settings, given)
    for needed in ("sigma", "arch"):
        if needed not in settings:
            raise InvalidInputError(f"expected --{needed}, got none; add it, or start --from a network that records it")
    method = method or chosen.method
    usual = {**chosen.options, **chosen.options_at.get(settings["sigma"], {})} if method == chosen.method else {}
    objective = {"name": method, **usual, **(options or {})}
    return from_plain(Recipe, to_plain({**settings, "sigma_source": source, "objective": objective}))


def find_preset(name: str, data: str) -> Preset:
    """The preset of this name, for this data set."""
    known = presets()
    if name not in known:
        raise InvalidInputError(
            f"expected a preset among {', '.join(known)}, got preset={name!r}{did_you_mean(name, known)}"
        )
    preset = known[name]
    if preset.data != data:
        raise InvalidInputError(f"expected {preset.data} for preset {name}, got data={data!r}")
    return preset


def decided_by(card: ModelCard) -> dict[str, Any]:
    """The settings that a network to start from decides."""
    said: dict[str, Any] = {"sigma": card.sigma, "sigma_range": card.sigma_range, "noise": card.noise}
    said |= {"arch": card.arch, "normalize": Normalize(card.mean, card.std).text}
    return {name: value for name, value in said.items() if value is not None}


def _merge(usual: Mapping[str, Any], inherited: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Given settings over inherited ones over the usual ones."""
    if "optimizer" in given and given["optimizer"] != usual.get("optimizer"):
        # Another optimizer needs another learning rate.
        usual = {name: value for name, value in usual.items() if name not in ("lr", "weight_decay")}
    if "sigma" in given or "sigma_range" in given:  # they belong together
        inherited = {name: value for name, value in inherited.items() if name not in ("sigma", "sigma_range")}
    return {**usual, **inherited, **given}


def _take_sigma_source(settings: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the short form of the sigma source from the settings and return the long one.

    If only a range is set, sigma is its geometric mean.
    """
    search = {name: settings.pop(name) for name in _SEARCH if name in settings}
    bounds = settings.pop("sigma_range", None)
    if bounds is not None:
        low, high = from_plain(tuple[float, float], bounds, where="sigma_range")
        settings.setdefault("sigma", abs(low * high) ** 0.5)  # the recipe refuses negative bounds
    if from_plain(bool, settings.pop("per_input", False), where="per_input"):
        return {"name": "table", "bounds": bounds, **search}
    if idle := [f"{name}={given[name]}" for name in search if name in given]:
        raise InvalidInputError(f"expected per-input sigma with {', '.join(idle)}, got one sigma; add --per-input")
    return {"name": "constant"} if bounds is None else {"name": "range", "bounds": bounds}
