"""`sigmax memory …` as a user types it."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import Run
from sigmax.data import load_source
from sigmax.report.entries import entries
from sigmax.report.results import orders_table
from sigmax.report.sections import sections
from sigmax.runs import read_run, read_spec, read_table


@pytest.fixture(scope="module")
def settled_run(run: Run, digits_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 digits with per-input sigma and a memory of its own.

    In floating point, because `predict` takes 8-bit images, and the digits have 4 bits.
    """
    out = tmp_path_factory.mktemp("runs") / "per-input"
    code, _, err = run("certify", digits_model, "--n", 300, "--max", 12, "--per-input", "--float", "--out", out)
    assert code == 0, err
    return out


def digit(path: Path, place: int, brighter: int = 0) -> Path:
    image = np.rint(load_source("digits", split="test").images([place])[0, 0] * 255).astype(np.uint8)
    image[0, 0] += brighter
    Image.fromarray(image).save(path)
    return path


def test_a_frozen_memory_answers_as_a_fixed_classifier(
    run: Run, digits_model: Path, settled_run: Path, tmp_path: Path
) -> None:
    frozen = tmp_path / "frozen.db"
    code, out, err = run("memory", "freeze", settled_run, "--out", frozen, "--json")
    assert code == 0, err
    made = json.loads(out)
    answered = int((read_table(settled_run).predict >= 0).sum())
    assert (made["sigma"], made["entries"]) == (0.25, answered)
    before = frozen.read_bytes()
    image = digit(tmp_path / "a.png", 0, brighter=3)
    ask = ("predict", digits_model, image, "--memory", frozen, "--frozen", "--float", "--json")
    (answer,) = json.loads(run(*ask)[1])
    assert (answer["digest"], answer["is_recalled"], answer["rule"]) == (made["digest"], True, "inherited")
    # The same function for inputs that nobody asked about, by `certify`, its repetition and its continuation.
    certify = ("certify", digits_model, "--n", 300, "--max", 20, "--float", "--memory", frozen, "--frozen", "--out")
    code, _, err = run(*certify, tmp_path / "run")
    assert code == 0, err
    found = read_spec(tmp_path / "run" / "config.json").found
    assert found is not None
    assert found.frozen == made["digest"]
    table, live = read_table(tmp_path / "run"), read_table(settled_run)
    is_answer = live.predict >= 0
    assert table.predict[:12][is_answer].tolist() == live.predict[is_answer].tolist()
    assert (table.radius[:12] >= live.radius).all()
    assert frozen.read_bytes() == before
    code, out, err = run("replay", tmp_path / "run", "--json")
    assert (code, json.loads(out)["is_settled"]) == (0, True), err
    assert run("memory", "check", frozen)[0] == 0


def test_a_frozen_memory_is_used_as_one_only(run: Run, digits_model: Path, settled_run: Path, tmp_path: Path) -> None:
    frozen, image = tmp_path / "frozen.db", digit(tmp_path / "b.png", 100)
    assert run("memory", "freeze", settled_run / "memory.db")[0] == 2  # which sigma?
    assert run("memory", "freeze", settled_run / "memory.db", "--sigma", 0.25, "--out", frozen)[0] == 0
    predict = ("predict", digits_model, image, "--n", 200, "--float", "--memory")
    for options, expected in {
        (frozen,): "--frozen",
        (settled_run / "memory.db", "--frozen"): "memory freeze",
        (frozen, "--frozen", "--per-input"): "--per-input",
        (frozen, "--frozen", "--sigma", 0.3): "--sigma 0.25",
    }.items():
        code, _, err = run(*predict, *options)
        assert (code, expected in err, err.count("\n")) == (2, True, 1), err
    code, _, err = run("predict", digits_model, image, "--frozen")
    assert (code, "--memory" in err) == (2, True)


def test_a_run_folder_stands_for_its_memory(run: Run, digits_model: Path, settled_run: Path, tmp_path: Path) -> None:
    assert run("memory", "check", settled_run, "--json") == run("memory", "check", settled_run / "memory.db", "--json")
    shared = tmp_path / "shared.db"
    options = ("--n", 200, "--max", 2, "--memory", shared, "--out", tmp_path / "run")
    assert run("certify", digits_model, *options)[0] == 0
    assert json.loads(run("memory", "check", tmp_path / "run", "--json")[1])["contradictions"] == []
    (tmp_path / "empty").mkdir()
    assert run("memory", "check", tmp_path / "empty")[0] == 2


def test_show_says_what_a_memory_holds(run: Run, settled_run: Path) -> None:
    code, out, err = run("memory", "show", settled_run, "--json")
    assert code == 0, err
    found, table = json.loads(out), read_table(settled_run)
    kept = table.predict >= 0
    spec = read_spec(settled_run / "config.json")
    assert spec.found is not None
    assert (found["entries"], found["norm"], found["frozen"]) == (kept.sum(), 2, None)
    assert found["fingerprint"] == spec.found.fingerprint
    labels, counts = np.unique(table.predict[kept], return_counts=True)
    assert found["labels"] == {str(label): count for label, count in zip(labels, counts, strict=True)}
    assert found["radii"] == [table.radius[kept].min(), table.radius[kept].max()]
    assert [end["entry"] for end in found["ends"]] == [1, 2, 3, kept.sum() - 2, kept.sum() - 1, kept.sum()]
    code, out, _ = run("memory", "show", settled_run)
    assert (code, spec.found.fingerprint in out) == (0, True)


def test_explain_names_the_entries(run: Run, settled_run: Path, tmp_path: Path) -> None:
    table = read_table(settled_run)
    row = int((table.predict >= 0).argmax())
    code, out, err = run("memory", "explain", settled_run, "--data", "digits", "--index", table.idx[row], "--json")
    assert code == 0, err
    stored = json.loads(out)
    assert (stored["entry"], stored["influences"]) == (1, [])
    assert stored["answer"]["radius"] == table.radius[row]
    image = digit(tmp_path / "c.png", int(table.idx[row]), brighter=3)
    code, out, _ = run("memory", "explain", settled_run, image, "--json")
    near = json.loads(out)
    assert (near["entry"], [influence["id"] for influence in near["influences"]]) == (None, [1])
    assert near["answer"]["label"] == table.predict[row]
    for options in ((), (image, "--data", "digits"), ("--data", "digits"), ("--data", "digits", "--index", 10**6)):
        code, _, err = run("memory", "explain", settled_run, *options)
        assert (code, err.count("\n")) == (2, 1)
    assert "which decided" in " ".join(run("memory", "explain", settled_run, image)[1].split())


def test_permute_records_what_reports_show(run: Run, settled_run: Path, tmp_path: Path) -> None:
    code, out, err = run("memory", "permute", settled_run, "--orders", 50, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["inputs"], found["orders"]) == (12, 50)
    assert found["labels"] <= found["answers"] <= found["near"] <= 12
    (section,) = sections(entries([read_run(settled_run)]))
    table = orders_table(section)
    assert table.rows == (("per-input", "50", *(str(found[kind]) for kind in ("answers", "labels", "radii")), "0.000"),)
    code, _, err = run("memory", "permute", tmp_path)
    assert (code, err.count("\n")) == (2, 1)


def test_copy_moves_entries(run: Run, settled_run: Path, tmp_path: Path) -> None:
    code, out, err = run("memory", "copy", settled_run, tmp_path / "copy.db", "--json")
    assert code == 0, err
    assert json.loads(out)["entries"] == json.loads(run("memory", "show", tmp_path / "copy.db", "--json")[1])["entries"]
    code, _, err = run("memory", "copy", tmp_path / "missing.db", tmp_path / "new.db")
    assert (code, (tmp_path / "new.db").exists()) == (2, False)
