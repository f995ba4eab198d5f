import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(example: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", str(example)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 3


def test_readme_gives_the_two_commands_and_its_files_exist() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert len(links) >= 6
    assert all((ROOT / link.partition("#")[0]).exists() for link in links if "://" not in link)
