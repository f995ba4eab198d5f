"""The results of an experiment as a page of the documentation, from the records that are kept beside it.

    python benchmarks/results.py cifar10-cpu

docs/results/EXPERIMENT/runs has the table and the configuration of each certification; from these come report.md
and its figures. `sigmax reproduce EXPERIMENT --out docs/results/EXPERIMENT` adds what is missing, and needs the data.
"""

import argparse
from pathlib import Path

from sigmax.files import write_atomically
from sigmax.report.canvas import render
from sigmax.report.report import TEXT, Report
from sigmax.reproduce import load_experiment
from sigmax.reproduce.plan import size_of
from sigmax.reproduce.run import compose_result

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def compose(name: str) -> Report:
    """The report without pictures: no image of a data set is kept here."""
    experiment = load_experiment(name)
    report = compose_result(experiment, RESULTS / name, inputs=size_of(experiment).test)
    assert report is not None, f"expected records in {RESULTS / name}, got none"
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=sorted(folder.name for folder in RESULTS.iterdir()))
    options = parser.parse_args()
    report, folder = compose(options.experiment), RESULTS / options.experiment
    write_atomically(folder / TEXT, report.text.encode())
    for drawing in report.figures:
        write_atomically(folder / "figures" / f"{drawing.name}.png", render(drawing.figure)["png"])
    print(folder / TEXT)


if __name__ == "__main__":
    main()
