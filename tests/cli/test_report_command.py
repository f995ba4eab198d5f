import json
from pathlib import Path

from commands import Run

LOG = "idx\tlabel\tpredict\tradius\n"


def test_report_on_the_published_logs(run: Run, published_logs: Path, tmp_path: Path) -> None:
    fixed = published_logs / "cifar10-resnet110-cohen-0.50.tsv"
    per_input = published_logs / "cifar10-resnet110-cohen-0.50-qcrs-per-input-sigma.tsv"
    code, out, err = run(
        *("report", per_input, "--baseline", fixed, "--out", tmp_path / "report", "--radii", "0,0.5", "--json")
    )
    assert (code, err) == (0, "")
    written = json.loads(out)
    assert written["pairs"] == {per_input.stem: fixed.stem}
    assert {"accuracy", "comparison", "gain", "best"} <= set(written["tables"])
    assert written["report"] == str(tmp_path / "report" / "index.html")
    assert "<!doctype html>" in Path(written["report"]).read_text().lower()
    assert (tmp_path / "report" / "report.md").read_text().count("![") == len(written["figures"])
    code, out, err = run("report", per_input, "--out", tmp_path / "alone")
    assert code == 0
    assert f"note: {per_input.stem}" in err
    assert "--baseline" in err
    assert str(tmp_path / "alone") in out
    code, _, err = run("report", fixed, "--baseline", per_input, "--out", tmp_path / "turned")
    assert (code, err) == (0, "")  # a baseline needs none


def test_report_on_a_run_of_digits_shows_the_images_it_names(run: Run, digits_model: Path, tmp_path: Path) -> None:
    certify = ("certify", digits_model, "--n", 300, "--max", 12, "--skip", 9)
    assert run(*certify, "--out", tmp_path / "runs" / "fixed")[0] == 0
    assert run(*certify, "--search", "halving", "--out", tmp_path / "runs" / "own")[0] == 0
    code, out, err = run("report", tmp_path / "runs", "--out", tmp_path / "report", "--title", "Digits", "--json")
    assert (code, err) == (0, "")
    written = json.loads(out)
    assert written["runs"] == ["fixed", "own"]
    assert written["pairs"] == {"own": "fixed"}
    assert "pictures-own" in written["figures"]
    text = (tmp_path / "report" / "report.md").read_text()
    assert text.startswith("# Digits\n")
    assert "12 inputs of digits, n = 300, alpha = 0.001, exact noise, point and settled certificates" in text
    code, out, _ = run("show", tmp_path / "runs" / "own", "--json")
    (summary,) = json.loads(out)
    assert summary["acr_inside"] is not None
    assert 0 <= summary["at_bound"] <= 12


def test_a_radius_asked_for_twice_is_shown_once(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_text("idx\tlabel\tpredict\tradius\n0\t1\t1\t0.5\n")
    code, out, _ = run("show", log, "--radii", "0.5,0,0.50,0", "--json")
    assert code == 0
    (summary,) = json.loads(out)
    assert (summary["radii"], summary["accuracy"]) == ([0.5, 0.0], [1.0, 1.0])


def test_bad_input_is_one_line_and_writes_nothing(run: Run, digits_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_text("idx\tlabel\tpredict\tradius\n0\t1\t1\t0.5\n")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "logs").mkdir()
    for name in ("a.tsv", "b.tsv"):
        (tmp_path / "logs" / name).write_text(log.read_text())
    cases = [
        ((tmp_path / "missing",), "missing"),
        ((tmp_path / "nothing",), "nothing"),
        *(((log, "--radii", radii), radii.split(",")[-1]) for radii in ("near", "0,nan", "inf", "0.5,-1")),
        ((log, "--pictured", "some"), "some"),
        ((log, "--data", "digits"), "digits"),
        ((log, "--data", "nonsense"), "nonsense"),
        ((log, "--data", f"cifar10:{tmp_path}"), "--download"),
        ((log, "--baseline", tmp_path / "logs"), "got 2"),
    ]
    for arguments, message in cases:
        code, out, err = run("report", *arguments, "--out", tmp_path / "report")
        assert (code, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) == 1
        assert not (tmp_path / "report").exists()


def test_a_run_without_certificates_yet_is_left_out(run: Run, digits_model: Path, tmp_path: Path) -> None:
    done, begun = tmp_path / "runs" / "done", tmp_path / "runs" / "begun"
    certify = ("certify", digits_model, "--n", 100, "--skip", 9)
    assert run(*certify, "--max", 3, "--out", done)[0] == 0
    begun.mkdir()
    for name, lines in (("config.json", None), ("certificates.tsv", 1)):  # killed before the first row
        (begun / name).write_text("".join((done / name).read_text().splitlines(keepends=True)[:lines]))
    code, out, err = run("report", tmp_path / "runs", "--out", tmp_path / "report", "--json")
    assert code == 0
    assert json.loads(out)["runs"] == ["done"]
    assert f"note: {begun}" in err
    code, out, err = run("show", tmp_path / "runs", "--json")
    assert [shown["name"] for shown in json.loads(out)] == ["done"]
    assert f"note: {begun}" in err


def test_runs_over_different_inputs_are_compared_on_those_that_all_have(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text(LOG + "0\t1\t1\t0.5\n1\t1\t1\t0.4\n2\t1\t1\t0.3\n")
    (tmp_path / "two.tsv").write_text(LOG + "2\t1\t1\t0.7\n0\t1\t1\t0.6\n")
    logs = (
        tmp_path / "one.tsv",
        tmp_path / "two.tsv",
        "--baseline",
        tmp_path / "one.tsv",
        "--out",
        tmp_path / "report",
    )
    code, _, err = run("report", *logs)
    assert (code, "--common" in err) == (0, True)
    code, _, err = run("report", *logs, "--common", "--name", "two=QCRS")
    assert code == 0, err
    text = (tmp_path / "report" / "report.md").read_text()
    assert "2 inputs" in text
    assert "ACR 0.400 → 0.650, 2 of 2 gained" in text
    assert "QCRS" in text
    assert "| two |" not in text
    code, _, err = run("report", *logs, "--name", "three=QCRS")
    assert (code, "one, two" in err) == (2, True)
