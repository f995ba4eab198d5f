"""What an operator sees: metrics for Prometheus, and one line of JSON per event in the log."""

import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sigmax.memory import Memory
from sigmax.serve.answer import Answer
from sigmax.serve.desk import Desk

LOG = logging.getLogger("sigmax.serve")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@final
class Meters:
    """The metrics of one service."""

    def __init__(self, desk: Desk, memory: Memory) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "sigmax_requests", "Requests, by route and status.", ["route", "status"], registry=self.registry
        )
        self._answers = Counter("sigmax_answers", "Answers, by rule.", ["rule", "source"], registry=self.registry)
        self._seconds = Histogram(
            "sigmax_answer_seconds", "Time to an answer.", ["source"], buckets=_SECONDS, registry=self.registry
        )
        self.registry.register(_DeskMeter(desk, memory))

    def count_request(self, route: str, status: int) -> None:
        """One request has been replied to."""
        self._requests.labels(route, str(status)).inc()

    def count_answer(self, answer: Answer, seconds: float) -> None:
        """One question has been answered."""
        source = "memory" if answer.is_recalled else "sampling"
        self._answers.labels(str(answer.rule), source).inc()
        self._seconds.labels(source).observe(seconds)


@final
class _DeskMeter(Collector):
    """What is read at the moment somebody looks."""

    def __init__(self, desk: Desk, memory: Memory) -> None:
        self._desk = desk
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("sigmax_open_questions", "Questions without an answer.", value=self._desk.open)
        yield GaugeMetricFamily("sigmax_memory_entries", "Entries of the memory.", value=len(self._memory))
        yield CounterMetricFamily("sigmax_samples", "Forward passes.", value=self._desk.sampled)


@final
class JsonFormatter(logging.Formatter):
    """One line of JSON per event; `extra={"fields": …}` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_as_json() -> None:
    """Write all logs as JSON to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    LOG.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
