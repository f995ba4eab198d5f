"""All benchmarks in one run: prints every table, writes bench.json and, with --docs, docs/performance.md.

    python benchmarks/run.py [--only loop,peers] [--n 100000] [--docs]

About twenty minutes on two cores. Each part also runs alone, as benchmarks/PART.py.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from part import Part

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- the last run: written by benchmarks/run.py --docs -->\n", "<!-- end of the last run -->\n"
PARTS = ("startup", "loop", "peers", "breakdown", "training", "memory")


def call(script: str, *arguments: object) -> None:
    subprocess.run([sys.executable, str(HERE / f"{script}.py"), *map(str, arguments)], check=True)


def run(name: str, options: argparse.Namespace, file: Path) -> Part:
    if name == "memory":
        call(name, "--json", file)
        return memory_part(json.loads(file.read_text()))
    repeats = ["--repeats", options.repeats] if options.repeats else []
    call(name, "--n", options.n, *repeats, "--json", file)
    return Part(**json.loads(file.read_text()))


def memory_part(found: dict[str, Any]) -> Part:
    """The memory's own report has a form of its own: its numbers become rows, its words the note."""
    leaves = dict(flat(found))
    return Part(
        title="The memory",
        claim="among 10,000 entries a query takes at most a 300th of the time of stacking all and taking norms.",
        note=" ".join(f"{name}: {value}." for name, value in leaves.items() if isinstance(value, str)),
        rows=[{"what": name, "value": value} for name, value in leaves.items() if isinstance(value, int | float)],
    )


def flat(found: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{name}: ")
        else:
            yield f"{path}{name}", value


def write_docs(page: Path, parts: dict[str, Part], head: str) -> None:
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"expected the lines {BEGIN.strip()} and {END.strip()} in {page}, got none; put them back")
    tables = "\n".join(part.markdown() for part in parts.values())
    page.write_text(f"{before}{BEGIN}\n{head}\n\n{tables}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, between commas (default: %(default)s)")
    parser.add_argument("--n", type=int, default=100_000, help="samples of a certificate (default: %(default)s)")
    parser.add_argument("--repeats", type=int, help="medians over so many; by default what each part says")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="default: %(default)s")
    parser.add_argument("--docs", type=Path, nargs="?", const=DOCS, help=f"rewrite the last run in docs/{DOCS.name}")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"expected --only among {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    describe = [sys.executable, str(HERE / "machine.py")]
    machine = subprocess.run(describe, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    print(f"{machine}\n")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        parts = {name: run(name, options, Path(place) / f"{name}.json") for name in names}
    minutes = (time.perf_counter() - began) / 60
    report = {"machine": machine, "n": options.n, "minutes": minutes, "parts": {n: asdict(p) for n, p in parts.items()}}
    options.json.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{minutes:.1f} minutes; numbers: {options.json}")
    if options.docs:
        date = time.strftime("%Y-%m-%d")
        write_docs(options.docs, parts, f"`make bench`, n = {options.n:,}, {minutes:.0f} minutes, {date}. {machine}.")


if __name__ == "__main__":
    main()
