"""Requests on the command line: printed, taken from a file, made of one's own parts, resumed and replayed."""

import json
from pathlib import Path

import pytest

from commands import Run
from sigmax import Gaussian, HalvingSearch, Uniform
from sigmax.runs import read_run, read_spec, read_table
from sigmax.runs.table import without_time
from toy import Brighter, Doubled, Wide, toy_spec

FEW = ("--data", "digits", "--skip", 50, "--max", 6, "--n", 300)


def rows(out: Path) -> list[list[str]]:
    return [without_time(line) for line in (out / "certificates.tsv").read_text().splitlines()]


def ok(found: tuple[int, str, str]) -> str:
    code, said, log = found
    assert code == 0, log
    return said


@pytest.mark.parametrize(
    "options",
    [
        ("--batch", 128),
        ("--search", "halving", "--search-option", "pilot=32", "--bounds", "0.1,0.4", "--seed", 3),
        ("--search", "ascent-paper", "--steps", 3, "--search-samples", 2, "--noise", "uniform"),
        ("--tolerance", 0.1, "--runner-up", "--n-wrong", 100, "--alpha", 0.01, "--n0", 50),
        ("--at", "0.1,0.2", "--split", "tune", "--search", "toy:Brighter"),
    ],
)
def test_a_printed_request_gives_the_same_table(
    run: Run, digits_model: Path, tmp_path: Path, options: tuple[object, ...]
) -> None:
    asked = ("certify", digits_model, *FEW, *options)
    ok(run(*asked, "--out", tmp_path / "asked"))
    text = ok(run(*asked, "--print-spec"))
    (tmp_path / "spec.json").write_text(text)
    ok(run("certify", "--spec", tmp_path / "spec.json", "--out", tmp_path / "from-spec"))
    assert rows(tmp_path / "from-spec") == rows(tmp_path / "asked")
    # The record of a run is a request too.
    ok(run("certify", "--spec", tmp_path / "asked" / "config.json", "--out", tmp_path / "again"))
    assert rows(tmp_path / "again") == rows(tmp_path / "asked")
    assert (tmp_path / "again" / "config.json").read_text() == (tmp_path / "asked" / "config.json").read_text()


def test_printing_a_request_does_nothing_else(
    run: Run, digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = ok(run("certify", digits_model, *FEW, "--per-input", "--print-spec"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "spec.json").write_text(text)
    spec = read_spec(tmp_path / "spec.json")
    assert (spec.search, spec.noise, spec.data.max, spec.budget.n) == (HalvingSearch(initial=0.25), Gaussian(), 6, 300)
    assert spec.found is None
    assert ok(run("certify", "--spec", tmp_path / "spec.json", "--print-spec")) == text


def test_a_request_from_a_file_takes_no_options_that_it_decides(run: Run, digits_model: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(ok(run("certify", digits_model, *FEW, "--print-spec")))
    for more in ((digits_model,), ("--n", 400), ("--per-input",), ("--max", 3), ("--batch", 64), ("--seed", 1)):
        code, _, err = run("certify", "--spec", spec, *more, "--out", tmp_path / "run")
        assert (code, len(err.splitlines())) == (2, 1)
        assert "--spec" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('"n": 300', '"n": "many"', "budget.n"),
        ('"n": 300', '"m": 300', "budget"),
        ('"name": "halving"', '"name": "halvin"', "halving"),
        ('"model"', '"modell"', "modell"),
        ("{", "", "JSON"),
    ],
)
def test_a_file_that_is_no_request_is_refused_by_its_place(
    run: Run, digits_model: Path, tmp_path: Path, old: str, new: str, place: str
) -> None:
    text = ok(run("certify", digits_model, *FEW, "--per-input", "--print-spec"))
    assert old in text
    (tmp_path / "spec.json").write_text(text.replace(old, new, 1))
    code, _, err = run("certify", "--spec", tmp_path / "spec.json", "--out", tmp_path / "run")
    assert (code, len(err.splitlines())) == (2, 1)
    assert all(word in err for word in ("spec.json", place))


def test_without_a_model_or_a_file_nothing_is_asked(run: Run, tmp_path: Path) -> None:
    code, _, err = run("certify", "--out", tmp_path / "run")
    assert (code, "MODEL" in err) == (2, True)
    code, _, err = run("certify", "--spec", tmp_path / "missing.json")
    assert (code, "missing.json" in err) == (2, True)


@pytest.mark.parametrize(("name", "noise"), [("l2", Gaussian()), ("l1", Uniform()), ("gaussian", Gaussian())])
@pytest.mark.parametrize("option", ["--noise", "--norm"])
def test_noise_goes_by_its_name_or_its_norm(
    run: Run, digits_model: Path, tmp_path: Path, option: str, name: str, noise: object
) -> None:
    (tmp_path / "spec.json").write_text(ok(run("certify", digits_model, option, name, "--print-spec")))
    assert read_spec(tmp_path / "spec.json").noise == noise


OWN: dict[str, tuple[object, ...]] = {
    "search": ("--search", "toy:Brighter", "--search-option", "factor=1.5"),
    "search-one-sigma": ("--search", "toy:Doubled", "--sigma", 0.1),
    "noise": ("--noise", "toy:Wide", "--sigma", 0.1),
    "both": ("--noise", "toy:Wide", "--search", "toy:Brighter", "--sigma", 0.1),
}


@pytest.mark.parametrize("name", OWN)
def test_ones_own_search_and_noise_are_certified_resumed_and_replayed(
    run: Run, digits_model: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "run"
    asked = ("certify", digits_model, *FEW, *OWN[name])
    ok(run(*asked, "--out", tmp_path / "whole"))
    ok(run(*asked, "--max", 2, "--out", out))
    ok(run(*asked, "--resume", "--out", out))
    assert rows(out) == rows(tmp_path / "whole")
    assert "6 of 6" in ok(run("replay", out))
    code, _, err = run(*asked, "--resume", "--out", out, "--sigma", 0.2)
    assert (code, "search.initial" in err) == (2, True)
    found = read_run(out)
    assert found.spec is not None
    assert found.spec.is_per_input == ("toy:Brighter" in OWN[name])
    assert found.table.is_settled == found.spec.is_per_input
    assert isinstance(found.spec.noise, Wide if "toy:Wide" in OWN[name] else Gaussian)
    assert "run" in ok(run("show", out))
    expected = {
        "search": Brighter(initial=0.25, factor=1.5),
        "search-one-sigma": Doubled(initial=0.1),
        "both": Brighter(initial=0.1),
    }
    assert found.spec.search == expected.get(name, found.spec.search)


def test_another_noise_does_not_continue_ones_own(run: Run, digits_model: Path, tmp_path: Path) -> None:
    asked = ("certify", digits_model, *FEW, "--sigma", 0.1, "--out", tmp_path / "run")
    ok(run(*asked, "--noise", "toy:Wide"))
    code, _, err = run(*asked, "--resume")
    assert (code, "noise.name" in err) == (2, True)


def test_replay_says_whether_every_row_is_the_same(run: Run, digits_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ok(run("certify", digits_model, *FEW, "--per-input", "--out", out))
    assert json.loads(ok(run("replay", out, "--json"))) == {"rows": 6, "differing": [], "is_settled": True}
    table = out / "certificates.tsv"
    lines = table.read_text().splitlines(keepends=True)
    fields = lines[3].split("\t")
    fields[3] = fields[3][:-1] + str((int(fields[3][-1]) + 1) % 10)  # the last digit of a radius
    table.write_text("".join([*lines[:3], "\t".join(fields), *lines[4:]]))
    code, said, err = run("replay", out)
    assert (code, err) == (1, "")
    assert "5 of 6" in said
    assert fields[3] in said
    assert run("replay", out, "--max", 2)[0] == 0
    code, said, _ = run("replay", out, "--max", 3, "--json")
    assert (code, len(json.loads(said)["differing"])) == (1, 1)


def test_replay_of_what_is_no_record_is_one_line(run: Run, digits_model: Path, tmp_path: Path) -> None:
    ok(run("certify", digits_model, *FEW, "--out", tmp_path / "run"))
    for arguments in ((tmp_path / "nothing",), (tmp_path / "run", "--max", 0), (tmp_path / "run", "--data", "mnist")):
        code, _, err = run("replay", *arguments)
        assert (code, len(err.splitlines())) == (2, 1)


def test_a_random_seed_is_recorded_and_a_run_goes_on_with_it(run: Run, tmp_path: Path) -> None:
    spec = toy_spec(tmp_path)
    more = ("--data", spec.data.name, "--sigma", 0.25, "--n", 100, "--batch", 16, "--seed", "random")
    for name in ("first", "second"):
        assert run("certify", "toy:half_space", *more, "--max", 2, "--out", tmp_path / name)[0] == 0
    seeds = [read_spec(tmp_path / name / "config.json").budget.seed for name in ("first", "second")]
    assert seeds[0] != seeds[1]
    assert max(seed.bit_length() for seed in seeds) > 240  # fails once in 2**30
    code, _, err = run("certify", "toy:half_space", *more, "--out", tmp_path / "first", "--resume")
    assert code == 0, err
    assert read_spec(tmp_path / "first" / "config.json").budget.seed == seeds[0]
    assert len(read_table(tmp_path / "first")) == 3
    assert run("replay", tmp_path / "first")[0] == 0


def test_alpha_is_said_of_a_row_or_of_the_whole_table(run: Run, tmp_path: Path) -> None:
    spec = toy_spec(tmp_path)
    more = ("--data", spec.data.name, "--sigma", 0.25, "--n", 100, "--batch", 16)
    _, said, _ = run("certify", "toy:half_space", *more, "--alpha", 0.01, "--out", tmp_path / "row")
    assert "at most 0.03 of 3 rows" in said
    _, said, _ = run("certify", "toy:half_space", *more, "--family-alpha", 0.03, "--out", tmp_path / "table")
    assert "of 3 rows" not in said
    assert read_spec(tmp_path / "table" / "config.json").family_alpha == 0.03
    assert read_table(tmp_path / "table").alpha == 0.01 * (1 - 2.0**-50)
