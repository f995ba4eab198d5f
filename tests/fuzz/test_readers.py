"""Whatever a file or a request holds, its reader gives an answer or a clear error: no crash, no code run, no leak."""

import ctypes
import gc
import json
import os
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from sigmax import CertificateMemory, PointCertificate
from sigmax.data import load_source
from sigmax.errors import SigmaxError
from sigmax.models import ModelCard, load_model, save_model
from sigmax.models.architectures import build_network
from sigmax.runs import format_row, read_spec, read_table
from sigmax.runs.table import HEADER
from sigmax.serve.images import decode_image
from sigmax.serve.protocol import decode_request, output_names
from sigmax.serve.tokens import Tokens
from toy import toy_spec
from trial import SHAPE, image, png

Read = Callable[[Path], object]
POINT = PointCertificate(label=1, radius=0.5, sigma=0.25, p_lower=0.97, n=100, alpha=0.001, norm=2)
_MEMORY_GROWTH = 80 * 2**20  # what caches of libraries may take; a leak takes more in a thousand examples


def make_body(_folder: Path) -> bytes:
    tensor = {"name": "image", "datatype": "FP32", "shape": [1, *SHAPE], "parameters": {"binary_data_size": 256}}
    head = json.dumps({"inputs": [tensor], "parameters": {"n": 1_000, "alpha": 0.01}, "outputs": [{"name": "radius"}]})
    return b"%4d" % len(head) + head.encode() + image(0.3).tobytes()


def read_body(path: Path) -> object:
    """The first four bytes stand for the header that says how much of the body is JSON."""
    content = path.read_bytes()
    length = int(content[:4]) if content[:4].strip().isdigit() else None
    return decode_request(
        content[4:],
        header_length=length,
        shape=SHAPE,
        outputs=output_names(takes_level=True),
        most=8,
        decode_image=lambda content: decode_image(content, SHAPE),
    )


def make_table(_folder: Path) -> bytes:
    return (HEADER + "".join(format_row(i, 1, POINT, None, 0.5) for i in range(3))).encode()


def make_weights(folder: Path) -> bytes:
    card = ModelCard(arch="digits-cnn", num_classes=10, input_shape=SHAPE, sigma=0.25)
    save_model(folder / "weights", build_network("digits-cnn", num_classes=10, in_channels=1), card, in_half=True)
    return (folder / "weights").read_bytes()


def make_checkpoint(_folder: Path) -> bytes:
    file = BytesIO()
    torch.save({"state_dict": {"1.weight": torch.zeros(2, 3)}, "arch": "cifar_resnet20"}, file)
    return file.getvalue()


def make_arrays(_folder: Path) -> bytes:
    file = BytesIO()
    np.savez(file, images=np.zeros((3, *SHAPE), np.uint8), labels=np.arange(3))
    return file.getvalue()


def make_memory(folder: Path) -> bytes:
    with CertificateMemory.open(folder / "made.db", norm=2, fingerprint="made up") as memory:
        for i in range(3):
            memory.settle(torch.from_numpy(image(0.2 + 0.3 * i)), POINT)
    with sqlite3.connect(folder / "made.db") as connection:
        connection.execute("pragma journal_mode = delete")
    connection.close()
    return (folder / "made.db").read_bytes()


def read_memory(path: Path) -> object:
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with CertificateMemory.existing(path) as memory:
        memory.lookup(torch.from_numpy(image(0.2)))
        return list(memory.entries()), list(memory.contradictions())


def make_spec(folder: Path) -> bytes:
    return toy_spec(folder).to_json().encode()


# For each kind of file: its ending, how to make a sound one, and how it is read.
READERS: dict[str, tuple[str, Callable[[Path], bytes], Read]] = {
    "body": (".bin", make_body, read_body),
    "image": (".png", lambda _: png(image(0.3)), lambda path: decode_image(path.read_bytes(), SHAPE)),
    "table": (".tsv", make_table, read_table),
    "weights": (".safetensors", make_weights, lambda path: load_model(str(path))),
    "checkpoint": (".pt", make_checkpoint, lambda path: load_model(str(path), normalize="none")),
    "arrays": (".npz", make_arrays, lambda path: load_source(f"arrays:{path}")),
    "memory": (".db", make_memory, read_memory),
    "request": (".json", make_spec, read_spec),
    "tokens": (".txt", lambda _: b"ask 0123456789abcdef\n", lambda path: Tokens.parse(path.read_text("latin-1"))),
}


@cache
def sound(kind: str) -> bytes:
    """A file that its reader takes."""
    with TemporaryDirectory() as folder:
        return READERS[kind][1](Path(folder))


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The same with some bytes changed, left out, put in or repeated; sometimes something else altogether."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["change", "cut", "insert", "remove", "repeat"])):
            case "change" if data:
                data[place] = draw(st.integers(0, 255))
            case "cut":
                del data[place:]
            case "insert":
                data[place:place] = draw(
                    st.binary(min_size=1, max_size=8) | st.sampled_from([b"9" * 20, b"\0" * 64, b"[" * 50])
                )
            case "remove":
                del data[place : place + draw(st.integers(1, 64))]
            case "repeat":
                data += data[place : place + 64]
    return bytes(data)


def fuzz(kind: str, examples: int, number: int = 0) -> None:
    """Read so many damaged files of a kind; only our own errors may come of it. The number seeds the damage."""
    ending, _, read = READERS[kind]
    answered = 0
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"file{ending}"

        @seed(number)
        @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
        @given(damaged(sound(kind)))
        def check(content: bytes) -> None:
            nonlocal answered
            path.write_bytes(content)
            with suppress(SigmaxError):
                read(path)
                answered += 1

        check()
    assert answered < examples  # else nothing was damaged


def resident() -> int:
    """Bytes of memory that this process has, without those that are free but not yet given back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", READERS)
def test_a_sound_file_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"file{READERS[kind][0]}"
    path.write_bytes(sound(kind))
    if kind == "checkpoint":  # sound, but of no known network
        with pytest.raises(SigmaxError, match="resnet20"):
            READERS[kind][2](path)
    else:
        READERS[kind][2](path)


def test_damage_that_sqlite_cannot_quote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    path.write_bytes(sound("memory").replace(b"CREATE TABLE balls", b"CREATE TAB\x80E balls"))
    with pytest.raises(SigmaxError, match=r"file\.db"):
        read_memory(path)


@pytest.mark.parametrize("kind", READERS)
def test_a_damaged_file_is_answered_or_refused(kind: str) -> None:
    fuzz(kind, 60)


@pytest.mark.scale
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads its memory from /proc")
def test_a_hundred_thousand_damaged_files_leak_nothing(kind: str) -> None:
    """10^5 in all kinds together. In blocks, because Hypothesis remembers all examples of one."""
    blocks = 10
    for number in range(blocks):
        fuzz(kind, -(-100_000 // len(READERS) // blocks), number)
        if number == 0:
            before = resident()
    assert resident() - before < _MEMORY_GROWTH


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return partial(os.mkdir, str(self.path)), ()


def evil_files(canary: Path) -> Iterator[tuple[str, bytes]]:
    """Files that run code in a careless reader."""
    bare = pickle.dumps(Canary(canary))
    checkpoint, arrays = BytesIO(), BytesIO()
    torch.save({"state_dict": Canary(canary)}, checkpoint)
    np.savez(arrays, images=np.array([Canary(canary)], dtype=object), labels=np.arange(1))
    yield from (("checkpoint", content) for content in (bare, checkpoint.getvalue()))
    yield from (("arrays", content) for content in (bare, arrays.getvalue()))
    yield from ((kind, bare) for kind in READERS)


def test_no_file_runs_code(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    pickle.loads(pickle.dumps(Canary(canary)))
    assert canary.exists()  # a careless reader is noticed
    canary.rmdir()
    for kind, content in evil_files(canary):
        path = tmp_path / f"file{READERS[kind][0]}"
        path.write_bytes(content)
        with pytest.raises(SigmaxError):
            READERS[kind][2](path)
        assert not canary.exists()
