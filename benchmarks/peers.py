"""One certificate by sigmax, by the field's usual loop and by ART, on the same network and sample size.

The usual loop is written for this benchmark: one input at a time, batches of 1,000, no compiling. ART is
`PyTorchRandomizedSmoothing.certify` of the adversarial-robustness-toolbox (pip install 'sigmax[bench]').
Each certification is a process of its own, so that its peak memory is its own.

    python benchmarks/peers.py [--n 100000] [--repeats 3]
"""

import json
import subprocess
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from networks import NETWORKS, usable_backends
from part import Cell, Part, finish, interleaved, parser
from sigmax.models.backends import BACKENDS
from sigmax.rounding import format_down

CONTENDERS = {
    "usual-loop": "the usual loop",
    "art": "ART",
    **{f"sigmax-{backend}": f"sigmax, {backend}" for backend in BACKENDS},
}
SCRIPT = Path(__file__).with_name("contender.py")


def art_version() -> str | None:
    try:
        version("statsmodels")  # it certifies with that, and does not ask for it
        return version("adversarial-robustness-toolbox")
    except PackageNotFoundError:
        return None


def certify(contender: str, arch: str, n: int, notes: list[dict[str, float]]) -> float:
    """Seconds; the peak memory and the radius are noted."""
    command = [sys.executable, str(SCRIPT), contender, "--arch", arch, "--n", str(n)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    notes.append(found)
    return found["seconds"]


def compare(arch: str, n: int, *, contenders: list[str], repeats: int) -> list[dict[str, Cell]]:
    notes: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    seconds = interleaved({name: partial(certify, name, arch, n, notes[name]) for name in contenders}, repeats=repeats)
    memory = {name: max(found["megabytes"] for found in notes[name]) for name in contenders}
    return [
        {
            "network": arch,
            "n": n,
            "runs": repeats,
            "who": CONTENDERS[name],
            "radius": format_down(notes[name][0]["radius"]),
            "batch": ", ".join(dict.fromkeys(f"{found['batch']:,.0f}" for found in notes[name])),
            "seconds": seconds[name],
            "usual loop / it": seconds["usual-loop"] / seconds[name],
            "ART / it": seconds["art"] / seconds[name] if "art" in seconds else "",
            "peak MB": memory[name],
            "its memory / ART's": memory[name] / memory["art"] if "art" in memory else "",
        }
        for name in contenders
    ]


def main() -> None:
    options = parser(__doc__, repeats=3).parse_args()
    art = art_version()
    backends, missing = usable_backends()
    here = ["usual-loop", *(["art"] if art else []), *(f"sigmax-{backend}" for backend in backends)]
    contenders = [name for name in CONTENDERS if name in here]
    rows = [
        row
        # The whole of n takes minutes, and shows how memory grows; a tenth, of which the time is as even, is repeated.
        for arch, n, repeats in (
            (NETWORKS[0], options.n, 1),
            (NETWORKS[0], options.n // 10, options.repeats),
            (NETWORKS[1], options.n // 10, options.repeats),
        )
        for row in compare(arch, n, contenders=contenders, repeats=repeats)
    ]
    peer = f"ART is {art}" if art else "ART is missing: pip install 'sigmax[bench]'"
    part = Part(
        title="One certificate, against others",
        claim="at least 1.5 times faster than the usual loop; at least twice as fast as ART with less than a tenth "
        "of its memory (at n = 100,000).",
        note="Medians of the runs, in turns, each in a process of its own, after a first batch. Radii belong to one "
        "input and agree but for chance; openvino-int8 is another function. Peak memory is above that of the imports; "
        f"it includes compilers and what quantises. {peer}.{missing}",
        rows=rows,
    )
    finish(part, options.json)


if __name__ == "__main__":
    main()
