"""A worker of a cluster: loads a request once, then certifies the blocks that it is given."""

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Self, final

import torch

import sigmax
from sigmax.engine.blocks import Block, run_block
from sigmax.engine.prepare import Prepared, prepare
from sigmax.errors import EngineError, SigmaxError, one_line
from sigmax.plain import from_plain
from sigmax.runs import CertificationSpec
from sigmax.runs.points import Certified

_INTERVAL = 0.2  # seconds between two reports
_ENVIRONMENT = ("SIGMAX_DATA", "SIGMAX_CACHE")  # where data is looked for


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker runs, as far as it may change the last bits of an answer."""

    node: str
    processor: str  # the instructions that torch uses


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a process must share with its driver to find the same files and modules, and to compute the same bits."""

    version: str  # of sigmax
    threads: int  # the last bits of a sum may depend on it
    folder: str  # relative paths start here
    modules: tuple[str, ...]  # where modules of one's own are
    environment: Mapping[str, str]

    @classmethod
    def here(cls) -> Self:
        """Those of this process."""
        return cls(
            version=sigmax.__version__,
            threads=torch.get_num_threads(),
            folder=str(Path.cwd()),
            modules=tuple(sys.path),
            environment={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )

    def enter(self) -> None:
        """Apply them to this process. Folders that the node lacks are skipped, and its own settings win."""
        if sigmax.__version__ != self.version:
            raise EngineError(
                f"expected sigmax {self.version} as on the driver, got {sigmax.__version__}; install one version"
            )
        torch.set_num_threads(self.threads)
        with suppress(OSError):  # then the driver's files are not here either
            os.chdir(self.folder)
        sys.path += [place for place in self.modules if place not in sys.path]
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker has done since its last report."""

    certified: tuple[Certified, ...]
    passes: int


def this_place() -> Place:
    """Where this process runs."""
    return Place(node=platform.node(), processor=torch.backends.cpu.get_cpu_capability())


@final
class Worker:
    """Certifies blocks of one request. It has its own process, and says in errors on which node."""

    def __init__(self) -> None:
        self._work: Prepared | None = None

    def load(self, request: str, surroundings: Surroundings) -> Place:
        """Load the model and the data of a resolved request, in JSON; refuse them if they differ from the driver's."""
        with _named_errors():
            surroundings.enter()
            self._work = prepare(from_plain(CertificationSpec, json.loads(request)))
            return this_place()

    def certify(self, block: Block) -> Iterator[Report]:
        """Certify what is left of a block, and report several times a second."""
        news: SimpleQueue[Certified | int] = SimpleQueue()
        with _named_errors(), ThreadPoolExecutor(1) as thread:
            task = thread.submit(self._run, block, news)
            is_done = False
            while not is_done:
                is_done = bool(wait([task], timeout=_INTERVAL).done)
                found = [news.get() for _ in range(news.qsize())]
                certified = tuple(each for each in found if isinstance(each, Certified))
                yield Report(certified=certified, passes=sum(each for each in found if isinstance(each, int)))
            task.result()

    def _run(self, block: Block, news: "SimpleQueue[Certified | int]") -> None:
        assert self._work is not None, "it is loaded first"
        for certified in run_block(self._work, block, news.put):
            news.put(certified)


@contextmanager
def _named_errors() -> Iterator[None]:
    """Say on which node an error happened. Any error, because the user's own model can raise anything."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, SigmaxError) else f"{type(error).__name__}: {one_line(error)}"
        raise EngineError(f"node {platform.node()}: {said}") from error
