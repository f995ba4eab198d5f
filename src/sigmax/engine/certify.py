"""The driver: blocks out, point certificates in, settled and recorded in the order of the inputs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

from sigmax.engine import preflight
from sigmax.engine.base import Engine
from sigmax.engine.blocks import blocks_left, split_blocks
from sigmax.engine.local import LocalEngine
from sigmax.engine.prepare import prepare
from sigmax.engine.record import open_record
from sigmax.models import LoadedModel
from sigmax.runs import CONFIG, CertificateTable, CertificationSpec, read_spec, read_table
from sigmax.sampling import Progress

# Shows work under way: (what, how much in all) -> a context that is told what was done since.
Tracker = Callable[[str, int], AbstractContextManager[Progress]]


def certify(
    spec: CertificationSpec,
    out: Path,
    *,
    track: Tracker,
    engine: Engine | None = None,
    resume: bool = False,
    loaded: LoadedModel | None = None,
    download: bool = False,
    on_note: Callable[[str], None] | None = None,
    on_estimate: Callable[[float], None] | None = None,
) -> CertificateTable:
    """Execute a request into the run folder `out`; return the whole table.

    If a search chooses sigma per input, a memory always settles the answers: without one they could contradict each
    other. Answers with one sigma are settled only if the request names a memory, and routed answers never. A frozen
    memory stores nothing; its digest is part of the record. A shard is not settled; see `merge_shards`.

    `track` shows progress, in forward passes of one sample. `engine` is where blocks run, by default this process. For
    `loaded`, `download` and `on_note` see `prepare`. `on_estimate` gets the seconds that the run will take, before it
    begins; if it raises, nothing is begun.
    """
    if spec.batch is None and (out / CONFIG).exists():
        spec = replace(spec, batch=read_spec(out / CONFIG).batch)  # a probe may find another one today
    engine = engine or LocalEngine()
    work = prepare(spec, loaded=loaded, download=download, on_note=on_note)
    spec, blocks = work.spec, split_blocks(work)
    indices = [index for block in blocks for index in block.indices]
    few = preflight.check(work, indices)  # a broken image must not stop the run hours later
    with open_record(spec, work.source, indices, out, resume=resume) as record:
        left = max(0, len(indices) - record.done)
        if left and on_note is not None:
            seconds = preflight.announce(work, few, left, on_note, workers=engine.workers())
            if on_estimate is not None:
                on_estimate(seconds)
        cost = left * work.certifier.cost(spec.budget)
        with (
            track(f"certifying {left} inputs", cost) as advance,
            closing(engine.certify(work, blocks_left(blocks, record.done), advance)) as found,
        ):
            for certified in found:
                record.take(certified)
    return read_table(out)
