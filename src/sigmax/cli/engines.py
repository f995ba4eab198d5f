"""Where certifications run: the options of engines and shards, and `sigmax merge`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sigmax.cli.console import print_runs, resumable, say, track
from sigmax.cli.groups import command
from sigmax.errors import InvalidInputError

if TYPE_CHECKING:
    from sigmax.engine import Engine
    from sigmax.runs import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What runs the blocks of a certification."""

    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    workers: int | None = None

    def start(self, on_note: Callable[[str], None]) -> "Engine":
        """The engine that the options name."""
        from sigmax.engine import LocalEngine

        if self.engine == "local":
            for name in ("address", "workers"):
                if (value := getattr(self, name)) is not None:
                    raise InvalidInputError(f"expected --engine ray with --{name}, got {name}={value} without; add it")
            return LocalEngine()
        from sigmax.engine.ray import RayEngine

        return RayEngine(address=self.address, workers=self.workers, on_note=on_note)


def parse_shard(text: str | None) -> "Shard | None":
    """I/N, such as 1/4."""
    if text is None:
        return None
    from sigmax.runs import Shard

    try:
        number, count = (int(part) for part in text.split("/"))
    except ValueError:
        raise InvalidInputError(f"expected --shard like 1/4, got {text!r}") from None
    return Shard(number=number, count=count)


@command
def merge(
    shards: list[Path],
    out: Path,
    memory: str | None = None,
    data: str | None = None,
    resume: bool = False,
    as_json: bool = False,
) -> None:
    """Merge the shards of a certification: the same bytes as without shards, except for the times.

    Example: `sigmax merge runs/shard-* --out runs/whole`
    """
    from sigmax.engine import merge_shards
    from sigmax.runs import read_run

    with resumable(f"the same command with --out {out} --resume"):
        merge_shards(shards, out, track=track, memory=memory, data=data, resume=resume)
    print_runs([(out.name, read_run(out))], radii=None, as_json=as_json)
    if not as_json:
        say(f"table: {out / 'certificates.tsv'}")
