import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from commands import Run
from sigmax import CertificateMemory, HalvingSearch, PointCertificate
from sigmax.cli.console import resumable, track
from sigmax.data import load_source
from sigmax.models import ModelCard, build_network, save_model
from sigmax.runs import read_run, read_spec

MEMORY = tuple(f"memory {name}" for name in ("show", "check", "explain", "permute", "copy", "freeze"))
COMMANDS = ("demo", "train", "certify", "predict", "replay", "show", "report", "reproduce", *MEMORY)


def certify(run: Run, model: Path, out: Path, *more: object, n: int = 500) -> tuple[int, str, str]:
    return run("certify", model, "--n", n, "--max", 12, "--skip", 3, "--out", out, *more)


def columns(folder: Path) -> list[list[str]]:
    """The table without its time column."""
    lines = (folder / "certificates.tsv").read_text().splitlines()
    return [[field for i, field in enumerate(line.split("\t")) if i != 5] for line in lines]


def test_help_shows_every_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "sigmax", "--help"], capture_output=True, text=True, check=True)
    assert all(command.split()[0] in shown.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert f"sigmax {command}" in " ".join(out.split())
    assert "Example" in out


def test_version(run: Run) -> None:
    assert run("--version")[:2] == (0, "sigmax 0.1.0\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_to_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run(
            [sys.executable, "-m", "sigmax", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert shown.returncode == 2
    assert shown.stderr.startswith("error: [Errno 28] No space left on device")
    assert shown.stderr.count("\n") == 1


def test_fixed_certification_writes_a_table_that_show_reads(run: Run, digits_model: Path, tmp_path: Path) -> None:
    code, out, _ = certify(run, digits_model, tmp_path / "run")
    assert code == 0
    assert "certified accuracy" in out
    assert [row[0] for row in columns(tmp_path / "run")[1:]] == [str(3 * i) for i in range(12)]
    assert {row[10] for row in columns(tmp_path / "run")[1:]} == {"point"}
    assert not (tmp_path / "run" / "memory.db").exists()
    code, out, _ = run("show", tmp_path / "run", "--radii", "0,0.1,5", "--json")
    (summary,) = json.loads(out)
    assert summary["inputs"] == 12
    assert summary["accuracy"][0] >= summary["accuracy"][1] > 0.5
    assert summary["accuracy"][2] == 0


def test_per_input_halves_and_has_no_steps(run: Run, digits_model: Path, tmp_path: Path) -> None:
    assert certify(run, digits_model, tmp_path / "run", "--per-input")[0] == 0
    assert isinstance(read_spec(tmp_path / "run" / "config.json").search, HalvingSearch)
    code, _, err = certify(run, digits_model, tmp_path / "other", "--per-input", "--steps", 4)
    assert code == 2
    assert "steps=4" in err


def test_the_ascent_steps_as_far_as_asked(run: Run, digits_model: Path, tmp_path: Path) -> None:
    moved = []
    for size in (0.001, 0.01):
        out = tmp_path / f"{size}"
        more = ("--search", "ascent-paper", "--steps", 2, "--search-step-size", size)
        assert certify(run, digits_model, out, *more, n=50)[0] == 0
        assert read_spec(out / "config.json").search.settings()["step_size"] == size
        moved.append(abs(read_run(out).table.sigma - 0.25).max())
    assert moved[1] == pytest.approx(10 * moved[0], rel=0.5)
    for search in ("halving", "grid"):
        code, _, err = certify(run, digits_model, tmp_path / "x", "--search", search, "--search-step-size", 0.01)
        assert code == 2
        assert all(word in err for word in (search, "step_size=0.01"))


def test_bounds_are_those_that_were_asked_for(run: Run, digits_model: Path, tmp_path: Path) -> None:
    assert certify(run, digits_model, tmp_path / "run", "--per-input", "--bounds", "0.24,0.26")[0] == 0
    found = read_run(tmp_path / "run")
    assert found.spec is not None
    assert found.spec.search.settings()["bounds"] == (0.24, 0.26)
    sigmas = np.unique(found.table.sigma)
    assert len(sigmas) > 1
    assert sigmas.min() > 0.2399
    assert sigmas.max() < 0.2601
    for bounds, flags, says in [
        ("0.1", ["--per-input"], "'0.1'"),
        ("0.5,1", ["--per-input"], "[0.5, 1.0]"),
        ("-1,1", ["--per-input"], "[-1.0, 1.0]"),
        ("-1,1", ["--search", "ascent"], "[-1.0, 1.0]"),
        ("0.1,1", ["--search", "grid"], "bounds=(0.1, 1.0)"),
        ("0.1,1", [], "bounds=(0.1, 1.0)"),
    ]:
        code, _, err = certify(run, digits_model, tmp_path / "other", *flags, "--bounds", bounds)
        assert code == 2
        assert says in err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("search", ["ascent", "ascent-paper", "grid"])
@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_per_input_certification_goes_through_a_memory(
    run: Run, digits_model: Path, tmp_path: Path, search: str, norm: str
) -> None:
    code, _, _ = certify(run, digits_model, tmp_path / "run", "--search", search, "--steps", 4, "--noise", norm)
    assert code == 0
    rows = columns(tmp_path / "run")
    assert {row[10] for row in rows[1:]} <= {"kept", "truncated", "inherited", "abstained"}
    assert len({row[5] for row in rows[1:]}) > 1  # sigmas
    code, out, _ = run("memory", "check", tmp_path / "run" / "memory.db", "--json")
    assert code == 0
    answered = sum(row[2] != "-1" for row in rows[1:])
    assert json.loads(out) == {"entries": answered, "contradictions": []}


def test_resume_gives_the_same_table_and_refuses_other_settings(run: Run, digits_model: Path, tmp_path: Path) -> None:
    options = ("--search", "ascent", "--steps", 3)
    certify(run, digits_model, tmp_path / "whole", *options)
    certify(run, digits_model, tmp_path / "cut", *options)
    table = tmp_path / "cut" / "certificates.tsv"
    table.write_bytes(table.read_bytes()[:-300])
    assert certify(run, digits_model, tmp_path / "cut", *options)[0] == 2
    assert certify(run, digits_model, tmp_path / "cut", *options, "--resume")[0] == 0
    assert columns(tmp_path / "cut") == columns(tmp_path / "whole")
    # A longer --max goes on where the shorter one ended.
    longer = ("certify", digits_model, "--n", 500, "--skip", 3, "--out", tmp_path / "cut", *options, "--resume")
    assert run(*longer, "--max", 14)[0] == 0
    assert columns(tmp_path / "cut")[:13] == columns(tmp_path / "whole")
    assert len(columns(tmp_path / "cut")) == 15
    code, _, err = run(*longer[:5], 2, *longer[6:], "--max", 14)
    assert code == 2
    assert "skip=2 (was 3)" in err
    code, _, err = certify(run, digits_model, tmp_path / "cut", *options, "--resume", "--seed", 1)
    assert code == 2
    assert "seed=1 (was 0)" in err


def test_a_memory_of_another_model_is_refused(run: Run, digits_model: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.db"
    assert certify(run, digits_model, tmp_path / "a", "--memory", memory)[0] == 0
    code, _, err = certify(run, digits_model, tmp_path / "b", "--memory", memory, "--noise", "uniform")
    assert code == 2
    assert "l1" in err
    assert certify(run, digits_model, tmp_path / "c", "--memory", memory, "--sigma", 0.3)[0] == 0


def test_predict_answers_and_never_contradicts_its_memory(run: Run, digits_model: Path, tmp_path: Path) -> None:
    source = load_source("digits")
    pixels = (source.images([0])[0, 0] * 255).round().astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "digit.png")
    code, out, _ = run("predict", digits_model, tmp_path / "digit.png", "--json")
    assert code == 0
    (answer,) = json.loads(out)
    assert (answer["image"], answer["label"]) == (str(tmp_path / "digit.png"), int(source.labels[0]))
    assert (answer["rule"], answer["is_recalled"]) == (None, False)
    assert answer["radius"] > 0
    assert answer["sigma"] > 0
    with_memory = ("predict", digits_model, tmp_path / "digit.png", "--memory", tmp_path / "m.db", "--json")
    (first,) = json.loads(run(*with_memory)[1])
    assert (first["rule"], first["is_recalled"]) == ("kept", False)
    assert first["radius"] > 0
    assert json.loads(run(*with_memory, "--seed", 9, "--sigma", 0.5)[1]) == [{**first, "is_recalled": True}]
    Image.fromarray(np.minimum(pixels, 254)).save(tmp_path / "digit.png")  # another image, inside the ball
    (inherited,) = json.loads(run(*with_memory)[1])
    assert (inherited["label"], inherited["rule"]) == (first["label"], "inherited")
    code, out, _ = run("predict", digits_model, tmp_path / "digit.png", "--memory", tmp_path / "m.db")
    assert "inherited" in out
    assert "recalled" in out


def test_show_prints_the_published_table(run: Run, published_logs: Path) -> None:
    code, out, _ = run("show", published_logs / "cifar10-resnet110-cohen-0.25.tsv", "--radii", "0,0.25,0.5,0.75,1,1.5")
    assert code == 0
    assert "0.767  0.612  0.423  0.251  0.000  0.000  0.424" in out


def test_show_notes_a_cut_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text("idx\tlabel\tpredict\tradius\n0\t1\t1\t0.5\n1\t1")
    code, out, err = run("show", tmp_path / "log.tsv")
    assert code == 0
    assert "log" in err
    assert "0.500" in out


def test_memory_check_finds_a_contradiction(run: Run, tmp_path: Path) -> None:
    """An entry of another memory, copied in past the rules."""

    def settle(name: str, *balls: tuple[float, int]) -> Path:
        with CertificateMemory.open(tmp_path / name, norm=2) as memory:
            for place, label in balls:
                point = PointCertificate(label=label, radius=0.5, sigma=0.25, p_lower=0.9, n=10, alpha=0.001, norm=2)
                memory.settle(np.full(3, place), point)
        return tmp_path / name

    ours, other = settle("ours.db", (0.0, 0)), settle("other.db", (9.0, 1), (0.1, 1))
    assert run("memory", "check", ours)[0] == 0
    with contextlib.closing(sqlite3.connect(ours, isolation_level=None)) as database:
        database.execute("ATTACH ? AS other", (str(other),))
        for table in ("balls", "inputs"):
            database.execute(f"INSERT INTO {table} SELECT * FROM other.{table} WHERE id = 2")
    code, out, _ = run("memory", "check", ours, "--json")
    assert (code, json.loads(out)) == (1, {"entries": 2, "contradictions": [[1, 2]]})
    assert run("memory", "check", ours)[0] == 1


OWN_MODELS = """
import torch
from torch import nn

class Own(nn.Module):
    identity = "own"
    def __init__(self, error=None, as_bool=False):
        super().__init__()
        self.error, self.as_bool, self.linear = error, as_bool, nn.Linear(64, 10)
    def forward(self, x):
        if self.error:
            raise self.error
        scores = self.linear(x.flatten(1))
        return scores > 0 if self.as_bool else scores

def asserting(): return Own(AssertionError("want RGB")).eval()
def keyed(): return Own(KeyError("x")).eval()
def remote(): return Own(ConnectionError("down")).eval()
def truths(): return Own(as_bool=True).eval()
def scripted(): return torch.jit.trace(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval(), torch.zeros(2, 1, 8, 8))
"""


@pytest.mark.parametrize(
    ("factory", "problem"),
    [
        ("asserting", "AssertionError: want RGB"),
        ("keyed", "KeyError: 'x'"),
        ("remote", "ConnectionError: down"),
        ("truths", "bool"),
    ],
)
def test_a_model_that_fails_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, problem: str
) -> None:
    (tmp_path / "own_models.py").write_text(OWN_MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = run("certify", f"own_models:{factory}", "--max", 2, "--n", 50, "--sigma", 0.1)
    assert (code, len(err.splitlines())) == (2, 1)
    assert problem in err


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_script_is_a_model(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no hooks, by which a probe counts what layers put out."""
    (tmp_path / "own_models.py").write_text(OWN_MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = run("certify", "own_models:scripted", "--max", 2, "--n", 50, "--sigma", 0.1)
    assert (code, err) == (0, "")


def test_names_in_brackets_are_printed_as_they_are(run: Run, digits_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "[b]run[x]"
    code, _, err = run("certify", digits_model, "--max", 2, "--n", 50, "--out", out)
    assert (code, err) == (0, "")
    code, shown, _ = run("show", out)
    assert code == 0
    assert "[b]run[x]" in shown


def test_inputs_of_another_shape_than_the_model_s_are_refused(run: Run, digits_model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", images=np.zeros((3, 1, 28, 28), np.uint8), labels=np.arange(3))
    data = f"arrays:{tmp_path / 'large.npz'}"
    code, _, err = run("certify", digits_model, "--data", data, "--n", 50, "--out", tmp_path / "run")
    assert (code, len(err.splitlines())) == (2, 1)
    assert all(shape in err for shape in ("(1, 8, 8)", "(1, 28, 28)"))
    assert not (tmp_path / "run").exists()


def test_a_broken_image_is_found_before_the_first_row(run: Run, digits_model: Path, tmp_path: Path) -> None:
    for i in range(70):
        (tmp_path / "images" / str(i % 10)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(tmp_path / "images" / str(i % 10) / f"{i:03}.png")
    whole = (tmp_path / "images" / "9" / "059.png").read_bytes()
    (tmp_path / "images" / "9" / "059.png").write_bytes(whole[:40])
    command = ("certify", digits_model, "--data", f"folder:{tmp_path / 'images'}", "--n", 50, "--out", tmp_path / "run")
    code, _, err = run(*command)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "059.png" in err
    assert not (tmp_path / "run").exists()
    (tmp_path / "images" / "9" / "059.png").write_bytes(whole)
    assert run(*command)[0] == 0


def test_a_model_of_ones_own_by_factory(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.Softmax(1)).eval()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = run("certify", "mine:build", "--max", 3, "--n", 50, "--sigma", 0.1, "--outputs", "probabilities")
    assert (code, err) == (0, "")
    assert len(columns(Path("runs/mine:build-digits-fixed"))) == 4
    np.savez("few.npz", images=np.zeros((3, 1, 8, 8), np.uint8), labels=np.arange(3))
    few = ("certify", "mine:build", "--data", "arrays:few.npz", "--n", 50, "--sigma", 0.1)
    code, _, err = run(*few)
    assert code == 2
    assert "num_classes=3" in err
    assert run(*few, "--classes", 10)[0] == 0
    code, _, err = run(*few, "--classes", 2)
    assert (code, "few.npz" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--classes", "7"), "classes=7"),
        (("--outputs", "probabilities"), "outputs=probabilities"),
    ],
)
def test_options_that_contradict_the_card_are_refused(
    run: Run, digits_model: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "black.png")
    for command in (("certify", digits_model, "--max", 1), ("predict", digits_model, tmp_path / "black.png")):
        code, _, err = run(*command, *options)
        assert (code, len(err.splitlines())) == (2, 1)
        assert says in err


ERRORS = [
    (["--sigma", "0"], "sigma=0"),
    (["--sigma", "-1", "--per-input"], "sigma=-1"),
    (["--alpha", "1"], "alpha=1"),
    (["--n", "0"], "n=0"),
    (["--n0", "0"], "n0=0"),
    (["--skip", "0"], "skip=0"),
    (["--max", "0"], "max=0"),
    (["--batch", "0"], "batch=0"),
    (["--device", "nonsense"], "device=nonsense"),
    (["--seed", str(2**256)], f"seed={2**256}"),
    (["--seed", "chance"], "chance"),
    (["--n", "9"], "n=9"),
    (["--split", "half"], "split"),
    (["--data", "nonsense"], "'nonsense'"),
    (["--data", "cifar10:/nonexistent"], "/nonexistent"),
    (["--memory", "/nonexistent/m.db"], "/nonexistent"),
    (["--search", "halvin"], "did you mean halving?"),
    (["--noise", "gausian"], "did you mean gaussian?"),
    (["--noise", "l3"], "l3"),
    (["--search-option", "pilot"], "'pilot'"),
    (["--search-option", "pilots=3", "--per-input"], "did you mean pilot?"),
    (["--search-option", "pilot=few", "--per-input"], "pilot"),
]


@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_bad_options_are_one_line_on_stderr_and_exit_2(
    run: Run, digits_model: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    code, out, err = run("certify", digits_model, "--out", tmp_path / "run", "--max", 2, *options)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert out == ""
    # Nothing is left behind that would be in the way of the corrected command.
    assert run("certify", digits_model, "--out", tmp_path / "run", "--max", 2, "--n", 10)[0] == 0


def test_debug_shows_where_an_error_came_from(run: Run, digits_model: Path) -> None:
    bad = ("certify", digits_model, "--data", "nonsense")
    for command in (("--debug", *bad), (*bad, "--debug")):
        code, _, err = run(*command)
        assert code == 2
        assert "Traceback" in err
    plain = run(*bad)[2]
    assert "Traceback" not in plain
    assert "--debug" in plain


@pytest.mark.parametrize("n", ["1e2", "100", "1_00", "100.0"])
def test_a_whole_number_may_be_written_with_an_exponent(run: Run, digits_model: Path, n: str) -> None:
    code, out, _ = run("certify", digits_model, "--n", n, "--print-spec")
    assert code == 0
    assert json.loads(out)["budget"]["n"] == 100


@pytest.mark.parametrize("n", ["1.5", "1e-2", "inf", "nan", "many"])
def test_what_is_not_a_whole_number_is_refused(run: Run, digits_model: Path, n: str) -> None:
    code, _, err = run("certify", digits_model, "--n", n, "--print-spec")
    assert code == 2
    assert n in err


@pytest.mark.parametrize("model", ["missing.pt", "no.such.module:factory", "folder"])
def test_a_model_that_is_not_there_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    code, _, err = run("certify", model, "--sigma", 0.25)
    assert code == 2
    assert model in err


def test_wrong_channels_and_too_few_classes(run: Run, digits_model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rgb.npz", images=rng.integers(0, 255, (4, 3, 8, 8), dtype=np.uint8), labels=np.arange(4))
    code, _, err = run("certify", digits_model, "--data", f"arrays:{tmp_path}/rgb.npz", "--out", tmp_path / "a")
    assert code == 2
    assert "(3, 8, 8)" in err
    np.savez(tmp_path / "many.npz", images=np.zeros((4, 1, 8, 8), np.uint8), labels=np.array([0, 1, 2, 10]))
    code, _, err = run("certify", digits_model, "--data", f"arrays:{tmp_path}/many.npz", "--out", tmp_path / "b")
    assert code == 2
    assert "many.npz" in err


@pytest.mark.parametrize(
    ("card", "folders", "is_refused"),
    [
        (("cat", "dog", "fox"), ("cat", "fox"), True),
        (("cat", "dog", "fox"), ("cat", "dog"), False),  # the places are right
        (("cat", "dog", "fox"), ("0", "2"), False),
        ((), ("cat", "fox"), True),
        ((), ("cat", "dog", "fox"), False),
    ],
)
def test_labels_that_mean_other_classes_are_refused(
    run: Run, tmp_path: Path, card: tuple[str, ...], folders: tuple[str, ...], is_refused: bool
) -> None:
    for folder in folders:
        (tmp_path / "images" / folder).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "images" / folder / "a.png")
    network = build_network("digits-cnn", num_classes=3, in_channels=1)
    save_model(tmp_path / "m.safetensors", network, ModelCard(arch="digits-cnn", num_classes=3, class_names=card))
    data = ("--data", f"folder:{tmp_path}/images", "--sigma", 0.25, "--n", 10, "--out", tmp_path / "run")
    code, _, err = run("certify", tmp_path / "m.safetensors", *data)
    assert code == (2 if is_refused else 0), err
    assert (f"folder:{tmp_path}/images" in err) == is_refused
    assert (tmp_path / "run").exists() != is_refused


def test_nan_pixels_are_refused_before_the_first_row(run: Run, digits_model: Path, tmp_path: Path) -> None:
    images = torch.rand(100, 1, 8, 8).numpy()
    images[80] = np.nan
    np.savez(tmp_path / "nan.npz", images=images, labels=np.zeros(100, dtype=np.int64))
    arguments = ("certify", digits_model, "--data", f"arrays:{tmp_path}/nan.npz", "--n", 64, "--out", tmp_path / "run")
    code, _, err = run(*arguments)
    assert code == 2
    assert "input 80" in err
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_resumed_with_other_images(run: Run, digits_model: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        images = np.random.default_rng(seed).integers(0, 255, (4, 1, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(4))
    arguments = ("--n", 20, "--out", tmp_path / "run")
    assert run("certify", digits_model, "--data", f"arrays:{tmp_path}/a.npz", *arguments)[0] == 0
    (tmp_path / "moved").mkdir()
    (tmp_path / "a.npz").rename(tmp_path / "moved" / "a.npz")
    assert run("certify", digits_model, "--data", f"arrays:{tmp_path}/moved/a.npz", *arguments, "--resume")[0] == 0
    code, _, err = run("certify", digits_model, "--data", f"arrays:{tmp_path}/b.npz", *arguments, "--resume")
    assert code == 2
    assert "data=" in err


def test_the_noise_of_an_image_does_not_depend_on_its_place(run: Run, digits_model: Path, tmp_path: Path) -> None:
    source = load_source("digits")
    for i in range(3):
        Image.fromarray((source.images([i])[0, 0] * 255).round().astype(np.uint8)).save(tmp_path / f"{i}.png")
    options = ("--json", "--n", 200)
    several = json.loads(run("predict", digits_model, *(tmp_path / f"{i}.png" for i in (2, 0, 1)), *options)[1])
    alone = json.loads(run("predict", digits_model, tmp_path / "0.png", *options, "--memory", tmp_path / "m.db")[1])
    assert several[1]["label"] == alone[0]["label"]
    again = run(
        "predict", digits_model, *(tmp_path / f"{i}.png" for i in (1, 0)), *options, "--memory", tmp_path / "n.db"
    )
    assert json.loads(again[1])[1]["radius"] == alone[0]["radius"]


def test_fewer_samples_on_the_command_line(run: Run, digits_model: Path, tmp_path: Path) -> None:
    cases: dict[str, list[object]] = {
        "tolerance": ["--tolerance", 0.1],
        "at": ["--at", "0.1,0.2,0.3"],
        "halving": ["--search", "halving", "--at", "0.1,0.2,0.3"],
        "runner-up": ["--runner-up"],
    }
    for name, more in cases.items():
        code, said, log = certify(run, digits_model, tmp_path / name, *more, n=20_000)
        assert code == 0, log
        assert "certificates.tsv" in said
    at = columns(tmp_path / "at")[1:]
    assert {float(row[3]) for row in at} <= {0.0, 0.1, 0.2, 0.3}
    place = columns(tmp_path / "at")[0].index("n")
    assert sum(int(row[place]) for row in at) < 0.3 * 12 * 20_000
    code, _, log = certify(run, digits_model, tmp_path / "at", "--at", "0.1,0.2", "--resume", n=20_000)
    assert code == 2
    assert "radii" in log
    assert run("certify", digits_model, "--at", "near", "--out", tmp_path / "x")[0] == 2


def test_inputs_with_a_wrong_answer_can_get_fewer_samples(run: Run, digits_model: Path, tmp_path: Path) -> None:
    source = load_source("digits")
    labels = source.labels.copy()
    labels[::2] = (labels[::2] + 1) % 10
    np.savez(tmp_path / "half.npz", images=source.images(range(len(source))), labels=labels)
    data = ("--data", f"arrays:{tmp_path}/half.npz")
    for name, more in {"all": (), "fewer": ("--n-wrong", 50)}.items():
        assert certify(run, digits_model, tmp_path / name, *data, *more)[0] == 0
    header, *everything = columns(tmp_path / "all")
    fewer = columns(tmp_path / "fewer")[1:]
    correct, n = header.index("correct"), header.index("n")
    assert [row for row in fewer if row[correct] == "1"] == [row for row in everything if row[correct] == "1"]
    assert {(row[correct], row[n]) for row in fewer} == {("1", "500"), ("0", "50")}
    assert run("certify", digits_model, "--n-wrong", 0, "--out", tmp_path / "x")[0] == 2


def test_an_interrupt_that_a_library_swallows_is_raised_again() -> None:
    def work() -> None:
        with resumable("more"), track("work", 2) as advance:
            advance(1)
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            advance(1)

    with pytest.raises(typer.Exit) as stop:
        work()
    assert stop.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_networks_in_folders_have_runs_of_their_own(
    run: Run, digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("net-0.25", "net-0.50"):
        Path(name).mkdir()
        Path(name, digits_model.name).write_bytes(digits_model.read_bytes())
    for model in ("net-0.25", f"net-0.50/{digits_model.name}"):
        assert run("certify", model, "--max", 1, "--n", 50)[0] == 0
    assert {path.name for path in Path("runs").iterdir()} == {"net-0.25-digits-fixed", "net-0.50-digits-fixed"}


def test_show_heads_a_column_with_the_radius_that_was_asked_and_names_the_backend(run: Run) -> None:
    record = Path(__file__).parents[2] / "docs" / "results" / "cifar10-cpu" / "runs" / "cohen-0.25-fixed"
    code, said, log = run("show", record, "--radii", "0.29999999,0.5")
    assert code == 0, log
    title, heading, row = (line.split() for line in said.splitlines()[:3])
    assert heading[3:5] == ["0.29999999", "0.5"]
    assert (title[-1], row[2:4]) == ("openvino-int8", ["point,", "float"])
    assert json.loads(run("show", record, "--json")[1])[0]["backend"].startswith("openvino-int8 ")
