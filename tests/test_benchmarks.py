"""The benchmarks run, write their numbers, and rewrite the page between its marks only."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from commands import Run
from sigmax.cards import read_card
from sigmax.models import load_model
from sigmax.runs import read_run

ROOT = Path(__file__).parents[1]


def bench(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_one_run_prints_a_table_writes_json_and_rewrites_the_page(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    text = (ROOT / "docs" / "performance.md").read_text()
    page.write_text(text)
    done = bench("run.py", "--only", "startup", "--repeats", 1, "--json", tmp_path / "bench.json", "--docs", page)
    assert done.returncode == 0, done.stderr
    assert "sigmax --help" in done.stdout
    report = json.loads((tmp_path / "bench.json").read_text())
    rows = report["parts"]["startup"]["rows"]
    assert [row["of import torch"] for row in rows if row["what"] == "import torch"] == [1.0]
    assert all(row["seconds"] > 0 for row in rows)
    marks = [line for line in text.splitlines(keepends=True) if line.startswith("<!--")]
    assert len(marks) == 2
    written = page.read_text()
    assert written.partition(marks[0])[0] == text.partition(marks[0])[0]
    assert written.partition(marks[1])[2] == text.partition(marks[1])[2]
    assert "| sigmax --help |" in written
    assert report["machine"] in written


def test_what_does_not_exist_is_refused() -> None:
    done = bench("run.py", "--only", "startup,nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_a_contender_certifies_like_the_others() -> None:
    found = [
        json.loads(bench("contender.py", name, "--arch", "patch-resnet10", "--n", 100).stdout)
        for name in ("sigmax-eager", "usual-loop")
    ]
    assert found[0]["radius"] > 0
    assert abs(found[0]["radius"] - found[1]["radius"]) < 0.1
    assert all(answer["megabytes"] > 0 and answer["seconds"] > 0 for answer in found)


def test_early_stops_are_judged_on_stored_answers(tmp_path: Path, digits_model: Path) -> None:
    asked = ("early_stops.py", digits_model, "--data", "digits", "--samples", 3_100, "--out", tmp_path)
    done = bench(*asked, "--skip", 100, "--max", 3)
    assert done.returncode == 0, done.stderr
    assert "3 inputs" in done.stdout
    (whole,) = (line.split() for line in done.stdout.splitlines() if "all 3,000 " in line)
    assert whole[2:4] == ["3,000", "1.00"]
    assert bench(*asked, "--skip", 100, "--max", 3, "--show").stdout == done.stdout


def test_a_search_is_judged_on_stored_answers(tmp_path: Path, digits_model: Path) -> None:
    done = bench(
        *("sigma_search.py", digits_model, "--data", "digits", "--samples", 600, "--out", tmp_path),
        *("--skip", 100, "--max", 2),
    )
    assert done.returncode == 0, done.stderr
    (oracle,) = (line.split() for line in done.stdout.splitlines() if "oracle  " in line and "%" in line)
    assert oracle[:2] == ["oracle", "4800"]
    assert oracle[3] == "100.0%"


def test_the_time_of_a_certification_is_told_by_its_parts(tmp_path: Path) -> None:
    done = bench("breakdown.py", "--n", 400, "--inputs", 1, "--json", tmp_path / "parts.json")
    assert done.returncode == 0, done.stderr
    spent = {row["what"]: row["ms per input"] for row in json.loads((tmp_path / "parts.json").read_text())["rows"]}
    assert {"forward pass", "sigma search", "memory", "records"} <= set(spent)
    assert all(milliseconds > 0 for milliseconds in spent.values())


def test_balls_of_wrong_answers_are_measured_against_all_others(run: Run, digits_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "wrong.npz"
    images = np.random.default_rng(0).random((6, 1, 8, 8), dtype=np.float32)
    np.savez(source, images=images, labels=np.zeros(6, dtype=np.int64))
    asked = ("certify", digits_model, "--data", f"arrays:{source}", "--n", 300, "--n-wrong", 100)
    for name, more in {"settled": ("--per-input",), "alone": ()}.items():
        code, _, log = run(*asked, *more, "--out", tmp_path / name)
        assert code == 0, log
    done = bench("wrong_balls.py", tmp_path / "settled", tmp_path / "alone")
    assert done.returncode == 0, done.stderr
    (row,) = (line.split() for line in done.stdout.splitlines()[1:])  # a run without a memory has no balls
    wrong = int((read_run(tmp_path / "settled").table.samples == 100).sum())
    assert row[:3] == ["settled", "6", str(wrong)]
    assert wrong > 0


def test_a_training_becomes_a_network_of_the_zoo(tmp_path: Path, digits_model: Path) -> None:
    out = tmp_path / "digits.safetensors"
    done = bench("to_zoo.py", digits_model, "digits", "--data", "digits", "--split", "test", "--out", out)
    assert done.returncode == 0, done.stderr
    card = read_card(out)
    assert card is not None
    ((sigma, share),) = card.noisy_accuracy
    assert (card.data, card.licence, sigma) == ("digits", "MIT", card.sigma)
    assert share > 0.8
    assert out.stat().st_size < 0.6 * digits_model.stat().st_size
    network = load_model(str(out)).model
    assert network(torch.rand(2, 1, 8, 8)).shape == (2, 10)
