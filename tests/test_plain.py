"""Typed values as plain JSON values and back: nothing is lost, dropped or guessed."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch
from torch import nn

from sigmax import AscentSearch, FixedSigma, Gaussian, HalvingSearch, SearchTask, SigmaSearch
from sigmax.errors import InvalidInputError
from sigmax.plain import from_plain, make_named, to_plain
from sigmax.search import Choice
from toy import Brighter, Wide


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int = 1
    range: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    kind: Literal["a", "b"] = "a"
    inner: Inner = field(default_factory=Inner)
    other: Inner | None = None
    search: SigmaSearch = field(default_factory=lambda: FixedSigma(0.25))

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInputError("expected a name, got none")


class Kept(SigmaSearch):
    """A search that is no dataclass, with a setting that decides."""

    initial, fixes_class = 0.5, False

    def __init__(self, share: float, predictor: Any = None) -> None:
        self.share, self.predictor = share, predictor

    def find(self, task: SearchTask) -> Choice:
        raise NotImplementedError

    def cost(self) -> int:
        return 0


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(to_plain(value), allow_nan=False))


@pytest.mark.parametrize(
    "value",
    [
        Outer(name="x"),
        Outer(name="x", kind="b", inner=Inner(count=3, range=(0.1, 0.2)), other=Inner()),
        Outer(name="x", search=HalvingSearch(initial=0.12, bounds=(0.1, 0.2))),
        Outer(name="x", search=AscentSearch.paper(initial=0.12)),  # its bounds are infinite
        Outer(name="x", search=Brighter(initial=0.1 + 0.2, factor=3.0)),
    ],
)
def test_values_come_back_from_json(value: Outer) -> None:
    assert from_plain(Outer, through_json(value)) == value


def test_a_named_thing_says_its_name_and_revision_and_may_be_its_name_alone() -> None:
    assert to_plain(Gaussian()) == {"name": "gaussian", "revision": 1}
    assert to_plain(Wide()) == {"name": "toy:Wide", "revision": 1, "width": 2.0}
    assert to_plain(HalvingSearch(initial=0.25))["revision"] == HalvingSearch.revision
    plain = {"name": "x", "search": {"name": "fixed", "initial": 0.5}}
    assert from_plain(Outer, plain).search == FixedSigma(0.5)
    assert make_named(Wide, "toy:Wide", {}) == Wide()


def test_settings_of_a_plain_class_are_its_attributes() -> None:
    assert to_plain(Kept(0.5)) == {"name": "test_plain:Kept", "revision": 1, "share": 0.5, "predictor": None}
    again: Any = make_named(SigmaSearch, "test_plain:Kept", {"share": "0.25"})  # type: ignore[type-abstract]
    assert again.share == 0.25  # a number, as it is declared


@pytest.mark.parametrize("value", [print, nn.Linear(2, 2), torch.zeros(2), object(), {1, 2}, b"bytes", Inner])
def test_what_is_not_plain_is_refused(value: object) -> None:
    """The text of a module has no weights, and that of a function its place in memory: neither can be compared."""
    for holder in (value, {"a": [value]}, Kept(0.5, value)):
        with pytest.raises(InvalidInputError, match=r"settings\(\)"):
            to_plain(holder)


@pytest.mark.parametrize(
    ("plain", "places"),
    [
        ({"nam": "x"}, ("nam", "name")),
        ({"name": "x", "inner": {"cuont": 1}}, ("inner", "cuont", "count")),
        ({"name": "x", "other": {"counts": 1}}, ("other", "counts", "count")),
        ({"name": "x", "inner": {"count": "many"}}, ("inner.count",)),
        ({"name": "x", "inner": {"count": 1.5}}, ("inner.count",)),
        ({"name": "x", "inner": {"range": [0.1]}}, ("inner.range",)),
        ({"name": "x", "inner": 3}, ("inner",)),
        ({"name": "x", "kind": "c"}, ("kind",)),
        ({"name": 3}, ("name",)),
        ({"kind": "a"}, ("name",)),  # missing
        ({"name": "x", "search": {"name": "fixed", "sigma": 0.5}}, ("search", "sigma")),
        ({"name": "x", "search": {"name": "fixed", "initial": "x"}}, ("search", "initial")),
        ({"name": "x", "search": {"name": "fixd", "initial": 0.5}}, ("search", "fixd", "fixed")),
        ({"name": "x", "search": {"name": "fixed", "initial": -1}}, ("search", "sigma=-1")),
        ({"name": "x", "search": {"name": "fixed", "revision": 0, "initial": 1}}, ("search", "revision=0")),
        ({"name": "x", "search": {"initial": 0.5}}, ("search", "name")),
        ({"name": "x", "search": 3}, ("search",)),
        ({"name": "x", "inner": None}, ("inner",)),
        ({"name": ""}, ("expected a name",)),
        ([], ("object",)),
    ],
)
def test_unknown_keys_and_wrong_types_are_refused_by_their_place(plain: Any, places: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        from_plain(Outer, plain, where="file")
    assert all(place in str(caught.value) for place in (*places, "file")), str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("0.5", None), ("three", None)])
def test_texts_may_stand_for_numbers(text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(InvalidInputError, match="count"):
            from_plain(Inner, {"count": text})
    else:
        assert from_plain(Inner, {"count": text}).count == value
