"""`sigmax demo` and `sigmax show`."""

from pathlib import Path

from sigmax.cli.console import note, print_runs, resumable, say, track, with_certificates
from sigmax.cli.groups import command
from sigmax.cli.options import parse_radii


@command
def demo(out: Path = Path("sigmax-demo"), as_json: bool = False) -> None:
    """Train on digits, certify with one sigma and with per-input sigma, and compare.

    Example: `sigmax demo --out sigmax-demo`
    """
    from sigmax.demo import run_demo
    from sigmax.runs import read_run

    with resumable(f"sigmax demo --out {out}"):
        result = run_demo(out, track)
    names = {"one sigma for all": result.fixed, "per-input sigma": result.per_input}
    print_runs([(name, read_run(out / table.name)) for name, table in names.items()], radii=None, as_json=as_json)
    if not as_json:
        say(f"picture: {result.picture}")
        say(f"next:    sigmax show {out}/fixed {out}/per-input")


@command
def show(tables: list[Path], radii: str | None = None, as_json: bool = False) -> None:
    """Show certified accuracy at each radius, ACR and abstentions of certificate tables.

    The inner ACR leaves out inputs whose sigma is at the upper bound of the search. Far above its training sigma, a
    network answers one class for everything, and radii grow without meaning.

    Example: `sigmax show runs/fixed runs/per-input --radii 0,0.25,0.5`
    """
    from sigmax.runs import read_runs

    wanted = None if radii is None else parse_radii("--radii", radii)
    runs = list(with_certificates(read_runs(tables)).values())
    for run in runs:
        if run.table.dropped:
            note(f"{run.name}: the last line is cut off and was left out")
    print_runs([(run.name, run) for run in runs], radii=wanted, as_json=as_json)
