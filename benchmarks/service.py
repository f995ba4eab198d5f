"""Two replicas with one memory behind nginx, under load, while replicas are killed and restarted. Loopback only.

    python benchmarks/service.py --seconds 180                       # three minutes, 10^5 entries in PostgreSQL
    python benchmarks/service.py --seconds 30 --entries 2000         # to see that it works

It prints latencies of lookups and of predictions with n = 1,000, every kind of reply, and lookups per second. It exits
with 1 if an answer changed, if two entries contradict each other, or if a 5xx came while all replicas were up.
PostgreSQL, nginx and wrk come from Debian packages. PostgreSQL runs in a temporary folder.
"""

import argparse
import http.client
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from machine import describe_machine
from replicas import Replica, behind_nginx, replicas, wait_until_ready
from sigmax import CertificateMemory, PointCertificate
from sigmax.models.reference import ModelReference
from sigmax.serve.protocol import HEADER

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from servers import postgres_server

CLIENTS = 8
SIGMA = 0.25
_GRACE = 4.0  # seconds around a death in which a 5xx may come: nginx has to notice
_KNOWN = 500  # stored images that are asked for


def random_images(count: int, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """8-bit images, far from each other; like natural ones, they differ most in low frequencies."""
    dice, (channels, height, width) = np.random.default_rng(seed), shape
    coarse = dice.integers(0, 232, (count, channels, -(-height // 4), -(-width // 4)), dtype=np.uint8)
    whole = coarse.repeat(4, axis=2).repeat(4, axis=3)[:, :, :height, :width]
    whole += dice.integers(0, 24, whole.shape, dtype=np.uint8)
    return whole.astype(np.float32) / np.float32(255)


def request_body(image: NDArray[np.float32], n: int) -> tuple[bytes, dict[str, str]]:
    """A request with binary data, as Triton's client sends it."""
    tensor = {
        "name": "image",
        "datatype": "FP32",
        "shape": [1, *image.shape],
        "parameters": {"binary_data_size": image.nbytes},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"n": n}}).encode()
    return head + image.tobytes(), {HEADER: str(len(head)), "content-type": "application/octet-stream"}


@dataclass
class Journal:
    """What the clients saw."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"lookup": [], "prediction": []})
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: list[float] = field(default_factory=list)  # when a 5xx or no reply came
    deaths: list[tuple[float, float]] = field(default_factory=list)  # from a kill until all are up again
    given: dict[int, tuple[int, float]] = field(default_factory=dict)  # image -> label and radius
    changed: int = 0

    def note(self, kind: str, status: int, seconds: float) -> None:
        """A reply came; status 0: none."""
        with self.lock:
            self.statuses[kind, status] += 1
            if status == 200:
                self.seconds[kind].append(seconds)
            elif status >= 500 or status == 0:
                self.failures.append(time.monotonic())

    def check(self, number: int, answer: tuple[int, float]) -> None:
        """An image was answered: as before, if it was."""
        with self.lock:
            self.changed += self.given.setdefault(number, answer) != answer

    def unexplained(self) -> int:
        """Failures while all replicas were up."""
        return sum(not any(begin - _GRACE <= at <= end + _GRACE for begin, end in self.deaths) for at in self.failures)


@dataclass(frozen=True)
class Load:
    """Known and new images, and where to ask for them."""

    port: int
    path: str
    images: NDArray[np.float32]  # the first `known` are in the memory
    known: int
    journal: Journal

    def ask(self, connection: http.client.HTTPConnection, number: int) -> None:
        """One question on a connection that is kept."""
        kind = "lookup" if number < self.known or number in self.journal.given else "prediction"
        body, headers = request_body(self.images[number], 1_000)
        began, status = time.monotonic(), 0
        try:
            connection.request("POST", self.path, body, headers)
            reply = connection.getresponse()
            content, status = reply.read(), reply.status
        except (OSError, http.client.HTTPException):
            connection.close()
        self.journal.note(kind, status, time.monotonic() - began)
        if status == 200:
            found = {output["name"]: output["data"][0] for output in json.loads(content)["outputs"]}
            if found["label"] >= 0:  # an abstention claims nothing
                self.journal.check(number, (found["label"], found["radius"]))
        elif status == 429:
            time.sleep(0.2)

    def client(self, seed: int, until: float) -> None:
        """Ask until then: nine of ten questions are about known images, or ones that were asked before."""
        dice = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        while time.monotonic() < until:
            old = [*range(self.known), *list(self.journal.given)[-200:]]
            self.ask(connection, dice.choice(old) if dice.random() < 0.9 else dice.randrange(len(self.images)))
        connection.close()


def kill_and_restart(found: list[Replica], journal: Journal, until: float) -> None:
    """Again and again: kill one replica, leave it down for a moment, start it again."""
    dice = random.Random(0)
    while time.monotonic() + 5 < until:
        time.sleep(5)
        replica, began = dice.choice(found), time.monotonic()
        journal.deaths.append((began, float("inf")))
        replica.kill()
        time.sleep(2)
        replica.start()
        replica.wait()
        journal.deaths[-1] = (began, time.monotonic())


def fill(place: str, images: NDArray[np.float32], fingerprint: str) -> None:
    """Settle made-up certificates of all images."""
    points = [
        PointCertificate(
            label=i % 10, radius=0.5, sigma=SIGMA, p_lower=0.97725, n=1_000, alpha=0.001, norm=2, is_exact=True
        )
        for i in range(len(images))
    ]
    began = time.monotonic()
    with CertificateMemory.open(place, norm=2, fingerprint=fingerprint) as memory:
        memory.settle_many(images, points)
    print(f"filled: {len(images):,} entries in {time.monotonic() - began:.0f} s", flush=True)


def lookups_per_second(port: int, path: str, images: NDArray[np.float32], folder: Path, seconds: int) -> float:
    """As wrk counts them, over connections that are kept."""
    bodies = [request_body(image, 1_000) for image in images[:64]]
    for i, (body, _) in enumerate(bodies):
        (folder / f"body-{i}").write_bytes(body)
    lines = ", ".join(f'["{name}"] = "{value}"' for name, value in bodies[0][1].items())
    script = f"""
local bodies, i = {{}}, 0
for k = 0, {len(bodies) - 1} do
  local file = io.open("{folder}/body-" .. k, "rb")
  bodies[k] = file:read("*a")
  file:close()
end
request = function()
  i = (i + 1) % {len(bodies)}
  return wrk.format("POST", "{path}", {{{lines}}}, bodies[i])
end
"""
    (folder / "ask.lua").write_text(script)
    command = ["wrk", "-t1", "-c16", f"-d{seconds}s", "-s", str(folder / "ask.lua"), f"http://127.0.0.1:{port}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not re.search("Non-2xx|Socket errors", said), said
    return float(re.findall(r"Requests/sec:\s+([\d.]+)", said)[0])


def percentiles(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    p50, p99 = np.percentile(np.array(seconds) * 1_000, [50, 99])
    return f"{len(seconds):,} answers, p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def run(options: argparse.Namespace, folder: Path, place: str) -> bool:
    """The whole benchmark; whether all promises were kept."""
    name, shape, fingerprint = served_model(options.model)
    images = random_images(options.entries + options.new, shape, seed=0)
    fill(place, images[: options.entries], fingerprint)
    known = min(_KNOWN, options.entries)
    asked = np.concatenate([images[:known], images[options.entries :]])
    command = [options.model, "--memory", place, "--n", "1000", "--batch", "256", "--sigma", str(SIGMA), "--name", name]
    path, journal = f"/v2/models/{name}/infer", Journal()
    with replicas(command, folder) as found, behind_nginx([replica.port for replica in found], folder) as port:
        wait_until_ready(port)
        if shutil.which("wrk"):
            rate = lookups_per_second(port, path, asked[:known], folder, options.lookup_seconds)
            print(f"lookups: {rate:,.0f} per second among {options.entries:,} entries", flush=True)
        load = Load(port, path, asked, known, journal)
        until = time.monotonic() + options.seconds
        threads = [threading.Thread(target=load.client, args=(seed, until)) for seed in range(CLIENTS)]
        threads.append(threading.Thread(target=kill_and_restart, args=(found, journal, until)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for kind, seconds in journal.seconds.items():
            print(f"{kind}: {percentiles(seconds)}")
        print("replies:", dict(sorted(journal.statuses.items())), f"{len(journal.deaths)} kills")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for number in list(journal.given):
            load.ask(connection, number)
        connection.close()
    with CertificateMemory.existing(place) as memory:
        contradictions = len(list(memory.contradictions())) if options.check else 0
        entries = len(memory)
    print(
        f"asked again: {len(journal.given):,} answers, {journal.changed} changed; memory: {entries:,} entries, "
        f"{contradictions} contradictions; 5xx or no reply while all were up: {journal.unexplained()}"
    )
    return not (journal.changed or contradictions or journal.unexplained())


def served_model(model: str) -> tuple[str, tuple[int, ...], str]:
    """Its name, the shape of its inputs, and what its memory belongs to."""
    from sigmax.cli.certify import RequestOptions, make_spec
    from sigmax.cli.options import ModelOptions, SamplingOptions, SearchOptions
    from sigmax.engine.prepare import smooth

    spec, loaded = make_spec(
        ModelOptions(model=model, batch=256), SearchOptions(sigma=SIGMA), SamplingOptions(), RequestOptions(n=1_000)
    )
    assert loaded.input_shape is not None, "the model says its shape"
    smoothed, _, _ = smooth(spec, spec.model.classifier(loaded), loaded.input_shape, levels=255)
    return ModelReference(name=model).short_name, loaded.input_shape, smoothed.fingerprint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:cifar10-cohen-0.25")
    parser.add_argument("--seconds", type=float, default=180.0, help="of load, while replicas are killed")
    parser.add_argument("--lookup-seconds", type=int, default=10, help="of lookups alone")
    parser.add_argument("--entries", type=int, default=100_000, help="in the memory")
    parser.add_argument("--new", type=int, default=2_000, help="images that are not in the memory")
    parser.add_argument("--memory", help="of one's own; by default PostgreSQL in a temporary folder")
    parser.add_argument("--no-check", dest="check", action="store_false", help="leave out the check of all pairs")
    options: Any = parser.parse_args()
    print(describe_machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.memory:
            is_kept = run(options, folder, options.memory)
        else:
            with postgres_server() as server:
                is_kept = run(options, folder, server.database())
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
