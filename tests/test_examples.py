import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sigmax import __version__

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(example: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", str(example)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 3


@pytest.mark.parametrize("notebook", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_from_top_to_bottom(notebook: Path) -> None:
    content = json.loads(notebook.read_text())
    assert content["nbformat"] == 4
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert not any(cell["outputs"] for cell in cells)  # what it shows is made where it is run
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        exec(compile("".join(cell["source"]), notebook.name, "exec"), names)  # as a kernel does: one namespace for all
    assert {"before", "after", "again"} <= set(names)


def test_the_container_copies_what_is_there() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split() for line in lines if line and not line.startswith("#")]
    assert steps[0][0] == "FROM"
    assert {step[0] for step in steps} <= {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT", "CMD"}
    assert all((ROOT / name).exists() for step in steps if step[0] == "COPY" for name in step[1:-1])
    for step in steps:
        if step[0] in ("ENTRYPOINT", "CMD"):  # else a shell would stand between the user's signals and sigmax
            assert isinstance(json.loads(" ".join(step[1:])), list)


def test_the_citation_names_this_version() -> None:
    said = re.findall(r"^(\S+): *(.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    known = {name: value.strip('"') for name, value in said}
    assert known["cff-version"] == "1.2.0"
    assert known["version"] == __version__
    assert {"title", "authors", "message", "license"} <= set(known)


def test_readme_gives_the_two_commands_and_its_files_exist() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert len(links) >= 6
    assert all((ROOT / link.partition("#")[0]).exists() for link in links if "://" not in link)


def test_readme_renders_where_packages_are_listed() -> None:
    """There, Markdown is all that is shown: markup of other kinds and extensions would stand there as text."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert text.startswith("# sigmax")
    assert not re.search(r"</?[a-zA-Z]|^!!! |^::: |\{:|\$\$", text, re.MULTILINE)
    assert "```" not in text  # every block is closed
