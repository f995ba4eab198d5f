"""The request: it survives JSON, refuses what it does not know, and says what decides the answers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmax import AscentSearch, FixedSigma, Gaussian, GridSearch, HalvingSearch, SigmaSearch, Uniform
from sigmax.budget import Budget
from sigmax.data.reference import DataReference
from sigmax.errors import InvalidInputError, RecordError
from sigmax.models.reference import ModelReference
from sigmax.runs import CertificationSpec, Found, read_spec
from toy import Brighter, Doubled, Wide

SPEC = CertificationSpec(
    model=ModelReference(name="toy:half_space"), data=DataReference(name="digits"), search=HalvingSearch(initial=0.25)
)
FOUND = Found(fingerprint="f", data="d", device="cpu", backend="torch 2", trained="cohen", trained_noise="gaussian")

counts = st.integers(1, 10**6)
shares = st.floats(0.0, 0.999)
levels = st.floats(1e-3, 10.0)
texts = st.text(min_size=1, max_size=8)


@st.composite
def searches(draw: Callable[..., Any]) -> SigmaSearch:
    initial, samples = draw(levels), draw(st.integers(1, 100))
    low, high = initial * draw(st.floats(0.1, 1.0)), initial * draw(st.floats(1.1, 4.0))
    bounds = draw(st.sampled_from([None, (low, high)]))
    made: list[SigmaSearch] = [
        FixedSigma(initial),
        HalvingSearch(initial=initial, samples=samples, bounds=bounds, pilot=draw(st.integers(0, 500))),
        AscentSearch(initial=initial, samples=samples, bounds=bounds, step_size=draw(levels)),
        AscentSearch.paper(initial=initial, steps=draw(st.integers(0, 900)), samples=samples),
        GridSearch(initial=initial, evaluations=draw(st.integers(100, 900)), samples=samples),
        Brighter(initial=initial, factor=draw(levels)),
        Doubled(initial=initial),
    ]
    return draw(st.sampled_from(made))  # type: ignore[no-any-return]


@st.composite
def budgets(draw: Callable[..., Any]) -> Budget:
    n = draw(counts) + 102  # the smallest alpha needs 103, if radii are tested
    radii = tuple(draw(st.lists(st.floats(0, 10), max_size=3)))
    return Budget(
        n0=draw(counts),
        n=n,
        alpha=draw(st.floats(1e-30, 0.999)),
        seed=draw(st.integers(-(2**63), 2**256 - 1)),
        tolerance=0.0 if radii else draw(shares),
        radii=radii,
        runner_up=False if radii else draw(st.booleans()),
        n_wrong=draw(st.none() | st.integers(1, n)),
    )


@st.composite
def specs(draw: Callable[..., Any]) -> CertificationSpec:
    model = ModelReference(
        name=draw(texts),
        arch=draw(st.none() | texts),
        normalize=draw(st.none() | texts),
        outputs=draw(st.sampled_from([None, "logits", "probabilities"])),
        classes=draw(st.none() | st.integers(2, 1_000)),
        backend=draw(st.sampled_from(["eager", "compile", "openvino", "openvino-int8"])),
        device=draw(st.sampled_from([None, "cpu", "cuda:1"])),
    )
    data = DataReference(
        name=draw(texts),
        split=draw(st.sampled_from(["test", "train", "fit", "tune"])),
        skip=draw(counts),
        max=draw(st.none() | counts),
    )
    return CertificationSpec(
        model=model,
        data=data,
        search=draw(searches()),
        noise=draw(st.sampled_from([Gaussian(), Uniform(), Wide(), Wide(3.5)])),
        budget=draw(budgets()),
        batch=draw(st.none() | counts),
        memory=draw(st.none() | texts),
        found=draw(st.sampled_from([None, FOUND, replace(FOUND, backend=None, trained=None, arch="resnet20")])),
    )


@given(specs())
def test_a_request_survives_json(tmp_path_factory: pytest.TempPathFactory, spec: CertificationSpec) -> None:
    path = tmp_path_factory.mktemp("spec") / "config.json"
    path.write_text(spec.to_json())
    again = read_spec(path)
    assert again == spec
    assert (again.to_json(), again.decisive()) == (spec.to_json(), spec.decisive())


def test_what_a_request_leaves_out_is_as_by_default(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    plain = {"model": {"name": "toy:half_space"}, "data": {"name": "digits"}, "noise": "gaussian"}
    path.write_text(json.dumps({**plain, "search": {"name": "halving", "initial": 0.25}}))
    assert read_spec(path) == SPEC


def test_the_limits_of_a_search_are_resolved() -> None:
    assert json.loads(SPEC.to_json())["search"]["bounds"] == [0.0625, 0.5]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("modle", {}),
        ("model.nmae", "x"),
        ("data.skips", 2),
        ("budget.m", 3),
        ("search.candidate", 3),
        ("noise.sigma", 3),
        ("found.trainer", "x"),
        ("model.name", 3),
        ("model.backend", "fast"),
        ("model.outputs", "scores"),
        ("data.split", "half"),
        ("data.skip", "two"),
        ("data.skip", 0),
        ("budget.n", "many"),
        ("budget.n", 0),
        ("budget.radii", 0.5),
        ("budget.alpha", None),
        ("search.initial", "x"),
        ("search.initial", -1),
        ("search.revision", 1),  # halving is at 2: the same settings would give other answers
        ("search.name", "halvign"),
        ("noise.name", "gausian"),
        ("search", 3),
        ("batch", 0),
        ("batch", "large"),
        ("version", 2),
        ("found.device", 1),
    ],
)
def test_what_a_request_does_not_know_is_refused_by_its_place(tmp_path: Path, place: str, value: Any) -> None:
    plain = json.loads(replace(SPEC, found=FOUND).to_json())
    *way, key = place.split(".")
    part = plain
    for step in way:
        part = part[step]
    part[key] = value
    path = tmp_path / "strange.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(RecordError) as caught:
        read_spec(path)
    said = str(caught.value)
    # A name is refused by the names there are, a number that its class refuses by what it is there.
    assert all(word in said for word in ("strange.json", *way[:1])), said
    assert key in said or str(value) in said, said


@pytest.mark.parametrize("text", ["{", "[1]", "3", "null", "{}"])
def test_what_is_no_request_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(RecordError, match="broken"):
        read_spec(path)
    with pytest.raises(RecordError, match="missing"):
        read_spec(tmp_path / "missing.json")


def test_what_decides_is_all_but_the_number_of_inputs_and_once_they_are_known_the_places() -> None:
    spec = replace(SPEC, found=FOUND)
    same = (
        replace(spec, data=replace(spec.data, max=3)),
        replace(spec, data=replace(spec.data, name="folder:elsewhere")),
        replace(spec, model=replace(spec.model, name="elsewhere/model.safetensors")),
    )
    assert all(one.decisive() == spec.decisive() for one in same)
    moved = replace(SPEC, data=replace(SPEC.data, name="folder:elsewhere"))
    assert moved.decisive() != SPEC.decisive()  # nothing is known of it but its name
    others = (
        replace(spec, data=replace(spec.data, skip=2)),
        replace(spec, data=replace(spec.data, split="train")),
        replace(spec, model=replace(spec.model, backend="openvino")),
        replace(spec, budget=Budget(seed=1)),
        replace(spec, search=FixedSigma(0.25)),
        replace(spec, search=HalvingSearch(initial=0.25, bounds=(0.1, 0.3))),
        replace(spec, noise=Uniform()),
        replace(spec, batch=64),
        replace(spec, memory="memory.db"),
        replace(spec, found=replace(FOUND, fingerprint="g")),
        replace(spec, found=replace(FOUND, data="e")),
        replace(spec, found=replace(FOUND, backend="torch 3")),
    )
    assert len({json.dumps(one.decisive()) for one in (spec, *others)}) == 1 + len(others)


def test_impossible_requests_are_refused() -> None:
    for change in ({"batch": 0}, {"version": 99}):
        with pytest.raises(InvalidInputError, match=next(iter(change))):
            replace(SPEC, **change)  # type: ignore[arg-type]
    for settings in ({"skip": 0}, {"max": 0}, {"max": -1}):
        with pytest.raises(InvalidInputError, match=next(iter(settings))):
            DataReference(name="digits", **settings)  # type: ignore[arg-type]


def test_a_search_says_whether_sigma_is_per_input() -> None:
    searches = (FixedSigma(0.25), Doubled(initial=0.25), HalvingSearch(initial=0.25), Brighter(initial=0.25))
    assert [replace(SPEC, search=search).is_per_input for search in searches] == [False, False, True, True]


@pytest.mark.parametrize(
    ("trained", "is_per_input", "noises", "method"),
    [
        ("cohen", False, "l2 l2", "cohen"),
        ("cohen", True, "l2 l2", "cohen-ds"),
        ("cohen-ds2", True, "l2 l2", "cohen-ds2"),
        ("cohen-ds2", False, "l2 l2", "cohen-ds2-fixed"),
        ("smoothadv", True, "l2 l2", "smoothadv-ds"),
        ("macer-ds2", True, "l2 l2", "macer-ds2"),
        ("cohen", False, "l1 l1", "yang"),
        ("cohen", True, "l1 l1", "yang-ds"),
        ("cohen-ds2", True, "l1 l1", "yang-ds2"),
        ("smoothadv", True, "l1 l1", "smoothadv-ds"),
        ("cohen", False, "l2 l1", "cohen-l1"),  # not the paper's: it certifies under the noise of the training
        ("cohen-ds2", True, "l1 l2", "yang-l2-ds2"),
    ],
)
def test_methods_are_called_as_in_the_paper(trained: str, is_per_input: bool, noises: str, method: str) -> None:
    trained_noise, noise = (Uniform() if norm == "l1" else Gaussian() for norm in noises.split())
    search = HalvingSearch(initial=0.25) if is_per_input else FixedSigma(0.25)
    found = replace(FOUND, trained=trained, trained_noise=trained_noise.name)
    assert replace(SPEC, search=search, noise=noise, found=found).method == method


def test_a_method_is_known_only_where_the_training_is() -> None:
    assert SPEC.method is None
    assert replace(SPEC, found=replace(FOUND, trained=None)).method is None
    assert replace(SPEC, found=FOUND, noise=Wide()).method != "cohen-ds"  # not the noise of its training
    assert replace(SPEC, found=replace(FOUND, trained_noise="toy:Wide"), noise=Wide()).method == "cohen-ds"
