"""What the pages tell a reader to type is true: their Python runs, their commands parse, their files exist."""

import contextlib
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer
from torch import nn

import sigmax
from sigmax.budget import Budget
from sigmax.cli import app
from sigmax.data import load_source
from sigmax.data.reference import DataReference
from sigmax.engine import certify
from sigmax.errors import InvalidInputError
from sigmax.models import LoadedModel
from sigmax.models.reference import ModelReference
from sigmax.paper.experiment import load_experiment
from sigmax.runs import CertificationSpec
from sigmax.train.objectives import make_objective
from small_experiment import write_experiment
from toy import quietly

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("results/*.md"))]
RUN = [
    "README",
    "index",
    "getting-started",
    "own-model",
    "per-input-sigma",
    "experts",
    "kinds-of-answers",
    "memory",
    "reports",
    "extending",
]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    return [block for language, block in FENCED.findall(page.read_text()) if language in languages]


def commands() -> Iterator[tuple[str, str]]:
    """Every `sigmax …` in a block or in running text, with the page it stands on."""
    for page in PAGES:
        for block in blocks(page, "", "sh", "bash", "console"):
            yield from ((page.name, line) for line in re.findall(r"^(?:.*-m )?sigmax (.*)$", block, re.MULTILINE))
        prose = FENCED.sub("", page.read_text())
        yield from ((page.name, line) for line in re.findall(r"`(?:[^`\n]*-m )?sigmax ([^`]+)`", prose))


def parse(line: str) -> None:
    """Let the command line read this as it would before it runs anything."""
    words = shlex.split(re.sub(r"[\[\]…]", " ", line.partition(" > ")[0]), comments=True)
    command: Any = typer.main.get_command(app)
    while words and words != ["--help"] and hasattr(command, "commands"):
        assert words[0] in command.commands, f"no command {words[0]}"
        command = command.commands[words.pop(0)]
    if words and words != ["--help"]:  # else the command is only spoken of
        # What only shows something, as `--preset list`, has done so by then.
        with contextlib.suppress(typer.Exit), command.make_context("sigmax", words):
            pass


@pytest.fixture
def page_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A reader's program: `model`, `x` and the like are theirs, and runs are in the current folder."""
    monkeypatch.chdir(tmp_path)
    digits = load_source("digits", split="test")
    module = ModuleType("a_readers_program")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    x = torch.from_numpy(digits.images(range(2)))
    g = sigmax.SmoothedClassifier(model, num_classes=10, sigma=0.25)
    labels = torch.from_numpy(digits.labels[:2])
    vars(module).update(model=model, x=x, g=g, batches=[(0, x, labels)], loader=[(x, labels)])
    searches: dict[str, sigmax.SigmaSearch] = {name: sigmax.FixedSigma(0.25) for name in ("own", "fixed")}
    searches["per-input"] = sigmax.HalvingSearch(initial=0.25)
    for name, search in searches.items():
        spec = CertificationSpec(
            model=ModelReference(name="model"),
            data=DataReference(name="digits", max=3),
            search=search,
            budget=Budget(n=100),
            batch=64,
        )
        certify(spec, tmp_path / "runs" / name, track=quietly, loaded=LoadedModel(model=model, card=None))
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look up where they were defined
    return module


@pytest.mark.parametrize("name", RUN)
def test_python_of_a_page_runs_from_top_to_bottom(name: str, page_module: ModuleType) -> None:
    page = next(page for page in PAGES if page.stem == name)
    found = blocks(page, "python")
    assert found
    for block in found:
        # The paper's number of steps is for readers: ten show as well that the call is right.
        exec(compile(block.replace("steps=900", "steps=10"), page.name, "exec"), vars(page_module))


def test_every_page_with_python_is_run() -> None:
    assert {page.stem for page in PAGES if blocks(page, "python")} == set(RUN)


def test_an_objective_of_the_docs_is_a_module_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [block for block in blocks(DOCS / "extending.md", "python") if "class SoftLabels" in block]
    (tmp_path / "own.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    objective: Any = make_objective("own:SoftLabels", {"share": 0.2})
    assert asdict(objective) == {"draws": 2, "share": 0.2}


def test_a_search_of_the_docs_is_a_module_as_it_stands() -> None:
    (block,) = [block for block in blocks(DOCS / "extending.md", "python") if "class Ladder" in block]
    definition, _, _ = block.partition("\n\n\ng = ")
    found: dict[str, Any] = {}
    exec(compile(definition, "ladder.py", "exec"), found)
    assert issubclass(found["Ladder"], sigmax.SigmaSearch)


def test_the_experiment_of_the_docs_is_one(tmp_path: Path) -> None:
    (block,) = blocks(DOCS / "reproducing.md", "toml")
    found = load_experiment(str(write_experiment(tmp_path, block)))
    assert list(found.networks) == ["cohen-0.12", "cohen-0.25", "cohen-ds2-0.25"]
    for line in ("[networks.published]", "sigma = [0.25, 0.50]", "model =", 'method = "cohen"', "normalize ="):
        assert f"\n# {line}" in block
        block = block.replace(f"\n# {line}", f"\n{line}")
    with pytest.raises(InvalidInputError, match=r"networks\.published"):
        load_experiment(str(write_experiment(tmp_path, block)))


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_command_lines_parse(page: str, line: str) -> None:
    parse(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("certfy x", "no command certfy"),
        ("memory chek x", "no command chek"),
        ("certify x --no-such-option", "No such option"),
        ("certify x --n many", "whole number"),
        ("certify x y", "unexpected extra argument"),
        ("memory check --json", "Missing"),
    ],
)
def test_command_lines_that_are_wrong_do_not_parse(line: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        parse(line)


def test_files_and_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        for path in re.findall(r"(?:examples|benchmarks|tests)/[\w/-]+\.py", text):
            assert (ROOT / path).is_file(), f"{page.name} names {path}"
        for target in re.findall(r"`make ([\w-]+)`", text):
            assert target in targets, f"{page.name} names make {target}"


def test_reference_has_every_public_name() -> None:
    shown = set(re.findall(r"^::: sigmax\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE))
    assert shown == set(sigmax.__all__) - {"__version__"}


def test_laplace_noise_of_the_page_has_the_radius_of_a_threshold(page_module: ModuleType) -> None:
    (block,) = (block for block in blocks(DOCS / "extending.md", "python") if "Laplace" in block)
    exec(block, vars(page_module))
    laplace = vars(page_module)["Laplace"]()
    threshold = sigmax.SmoothedClassifier(
        lambda x: torch.stack([-x[:, 0], x[:, 0]], dim=1), num_classes=2, noise=laplace, sigma=0.3
    )
    (certificate,) = threshold.certify(torch.tensor([[0.4, -1.0]]), n=50_000)
    assert certificate.label == 1
    assert certificate.radius == pytest.approx(0.4, abs=0.02)
    assert laplace.radius(laplace.probability(0.4, sigma=0.3), sigma=0.3) == pytest.approx(0.4)


def test_formulas_become_mathml_and_options_stay_whole_when_the_site_is_built() -> None:
    pytest.importorskip("latex2mathml", reason="comes with the docs extra")
    hooks = runpy.run_path(str(DOCS / "hooks" / "pages.py"))
    inline = r'<p>of <span class="arithmatex">\(p &lt; \frac{1}{2}\)</span> and</p>'
    block = r'<div class="arithmatex">\[R = \sigma\,\Phi^{-1}(p)\]</div>'
    shown = hooks["on_page_content"](inline + block)
    assert shown.count("<math") == 2
    assert shown.count('display="block"') == 1
    assert "arithmatex" not in shown
    option = hooks["on_page_content"]("<p><code>--n 10 --n-wrong 5 a-b</code> --x <code>-o</code></p>")
    names = re.findall(r'<span class="option">(.*?)</span>', option)
    assert names == ["--n", "--n-wrong", "-o"]
    assert re.sub(r"</?span[^>]*>", "", option) == "<p><code>--n 10 --n-wrong 5 a-b</code> --x <code>-o</code></p>"
    assert "<mfrac><mn>1</mn><mn>2</mn></mfrac>" in shown.replace("<mrow>", "").replace("</mrow>", "")
