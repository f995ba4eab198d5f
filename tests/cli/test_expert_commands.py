"""Experts on the command line and in files: asked, recorded, replayed."""

import json
from pathlib import Path

import pytest

from commands import Run
from sigmax.errors import InvalidInputError
from sigmax.paper.experiment import load_experiment
from sigmax.paper.machine import Machine
from sigmax.paper.plan import load_sources, make_plan
from sigmax.runs import read_run, read_spec
from sigmax.runs.table import COLUMNS

SAMPLING = ("--n", "300", "--max", "4", "--batch", "64")


@pytest.fixture(scope="module")
def expert_run(digits_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from commands import call

    out = tmp_path_factory.mktemp("experts") / "run"
    command = ("certify", str(digits_model), "--expert", f"{digits_model}@0.4", "--class-rule", "vote", *SAMPLING)
    code, _, stderr = call(*command, "--out", str(out))
    assert code == 0, stderr
    assert "% of n" in stderr  # what choosing costs
    return out


def test_the_record_names_the_experts_and_replays(expert_run: Path, run: Run) -> None:
    found = read_run(expert_run)
    assert found.spec is not None
    assert [each.sigma for each in found.spec.experts] == [0.4]
    assert (found.spec.class_rule, found.spec.search.initial, found.spec.is_per_input) == ("vote", 0.25, True)
    assert found.table.expert is not None
    assert set(found.table.expert.tolist()) <= {0, 1}
    code, stdout, _ = run("replay", str(expert_run))
    assert (code, "4 of 4 rows" in stdout) == (0, True)


def test_a_request_is_the_same_from_its_file(expert_run: Path, run: Run, tmp_path: Path, digits_model: Path) -> None:
    command = ("certify", str(digits_model), "--expert", f"{digits_model}@0.4", "--class-rule", "vote", *SAMPLING)
    code, stdout, _ = run(*command, "--print-spec")
    assert code == 0
    (tmp_path / "spec.json").write_text(stdout)
    spec = read_spec(tmp_path / "spec.json")
    assert len(spec.experts) == 1
    assert run("certify", "--spec", str(tmp_path / "spec.json"), "--out", str(tmp_path / "again"))[0] == 0
    tables = [(folder / "certificates.tsv").read_text().splitlines() for folder in (expert_run, tmp_path / "again")]
    time = COLUMNS.index("time")
    first, again = (
        [[*row[:time], *row[time + 1 :]] for row in (line.split("\t") for line in lines)] for lines in tables
    )
    assert first == again


def test_an_older_record_without_the_columns_is_read_and_replayed(expert_run: Path, run: Run, tmp_path: Path) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "config.json").write_text((expert_run / "config.json").read_text())
    rows = [
        line.split("\t")[: COLUMNS.index("tau")] for line in (expert_run / "certificates.tsv").read_text().splitlines()
    ]
    (older / "certificates.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    table = read_run(older).table
    assert (table.tau, table.expert) == (None, None)
    assert run("replay", str(older))[0] == 0
    rows[2][COLUMNS.index("point_sigma")] = "0.123"
    (older / "certificates.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    assert run("replay", str(older))[0] == 1


def test_told_levels_are_a_setting_of_the_search(run: Run, digits_model: Path) -> None:
    for text, taus in (("taus=1,", [1.0]), ("taus=0.7,1,2", [0.7, 1.0, 2.0])):
        code, stdout, stderr = run("certify", str(digits_model), "--per-input", "--search-option", text, "--print-spec")
        assert code == 0, stderr
        assert json.loads(stdout)["search"]["taus"] == taus


def test_mistakes_are_told(run: Run, digits_model: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run"))
    for more, says in (
        (("--expert", "no-such-file"), "no such file"),
        (("--expert", str(digits_model), "--search", "ascent"), "halving"),
        (("--expert", "toy:small_network@0.25"), "shape (1, 8, 8)"),
    ):
        code, _, stderr = run("certify", str(digits_model), *SAMPLING, *out, *more)
        assert (code, says in stderr) == (2, True), stderr


EXPERIMENT = """
[report]
title = "Experts"
paper = "cifar10"
[data]
name = "digits"
max = 4
[sampling]
n = 300
[networks.cohen]
sigma = [0.12, 0.25]
epochs = 1
[[certify]]
networks = "cohen-0.12"
search = "halving"
experts = ["cohen"]
"""


def test_an_experiment_has_experts_and_trains_them_first(tmp_path: Path) -> None:
    (tmp_path / "experts.toml").write_text(EXPERIMENT)
    experiment = load_experiment(str(tmp_path / "experts.toml"))
    ((name, certification),) = experiment.certifications.items()
    assert name == "cohen-0.12-halving-experts"
    assert [each.sigma for each in certification.spec.experts] == [0.25]
    assert json.loads(json.dumps(experiment.settings()))["certifications"][name]["experts"] == ["cohen-0.25"]
    steps = make_plan(experiment, tmp_path, machine=Machine(), sources=load_sources(experiment))
    assert [step.kind for step in steps] == ["train", "train", "certify"]
    (tmp_path / "wrong.toml").write_text(EXPERIMENT.replace('["cohen"]', '["macer"]'))
    with pytest.raises(InvalidInputError, match="macer"):
        load_experiment(str(tmp_path / "wrong.toml"))
