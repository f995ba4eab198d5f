import hashlib
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from sigmax.data import ImageSource, Split, cifar10, load_source
from sigmax.errors import DataError

ROWS = 4  # images in a batch
BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
RANDOM = np.random.default_rng(0)
PIXELS = {batch: RANDOM.integers(0, 256, size=(ROWS, 3072), dtype=np.uint8) for batch in BATCHES}
LABELS = {batch: RANDOM.integers(0, 10, size=ROWS).tolist() for batch in BATCHES}


def binary(batch: str) -> bytes:
    return b"".join(bytes([label]) + row.tobytes() for label, row in zip(LABELS[batch], PIXELS[batch], strict=True))


def python2(batch: str) -> bytes:
    """A batch as Python 2 and NumPy 1 wrote the official ones: byte strings, and modules of old names."""
    pixels, labels = PIXELS[batch].tobytes(), LABELS[batch]
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\0K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    shape = b"K" + bytes([ROWS]) + b"M" + struct.pack("<H", 3072) + b"\x86"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", len(pixels)) + pixels + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + state + b"U\x06labels" + numbers + b"u."


def python3(batch: str) -> bytes:
    return pickle.dumps({b"data": PIXELS[batch], b"labels": LABELS[batch]}, protocol=2)


def write(folder: Path, layout: str = "binary") -> Path:
    """All batches in one layout; gives the official folder."""
    folder /= "cifar-10-batches-bin" if layout == "binary" else "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for batch in BATCHES:
        if layout == "binary":
            (folder / f"{batch}.bin").write_bytes(binary(batch))
        else:
            (folder / batch).write_bytes(python2(batch) if layout == "python2" else python3(batch))
    return folder


def check(source: ImageSource, split: Split) -> None:
    batches = BATCHES[:5] if split == "train" else BATCHES[5:]
    expected = np.concatenate([PIXELS[batch].reshape(-1, 3, 32, 32) for batch in batches])
    assert source.shape == (3, 32, 32)
    assert source.levels == 255
    np.testing.assert_array_equal(source.labels, np.concatenate([LABELS[batch] for batch in batches]))
    np.testing.assert_array_equal(source.images(range(len(source))), expected.astype(np.float32) / np.float32(255))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("layout", ["binary", "python2", "python3"])
def test_both_layouts_give_the_same_images(tmp_path: Path, layout: str, split: Split) -> None:
    folder = write(tmp_path, layout)
    check(load_source(f"cifar10:{tmp_path}", split=split), split)
    check(load_source(f"cifar10:{folder}", split=split), split)


def test_the_classes_have_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path)
    monkeypatch.setenv("SIGMAX_DATA", str(tmp_path))
    names = load_source("cifar10").class_names
    assert len(names) == 10
    assert (names[0], names[3], names[9]) == ("airplane", "cat", "truck")


class MakesFolder:
    """Runs code when it is unpickled by anybody less careful."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_batch_with_code_in_it_is_refused_and_not_run(tmp_path: Path) -> None:
    path, proof = write(tmp_path, "python3") / "test_batch", tmp_path / "proof"
    path.write_bytes(pickle.dumps({b"data": MakesFolder(proof), b"labels": [0]}, protocol=2))
    with pytest.raises(DataError, match=r"\w+\.mkdir") as caught:
        load_source(f"cifar10:{tmp_path}")
    assert str(path) in str(caught.value)
    assert not proof.exists()
    pickle.loads(path.read_bytes())
    assert proof.exists()


BROKEN_PICKLES = {
    "empty": b"",
    "cut off": python2("test_batch")[:-100],
    "no pickle": b"<html>404</html>",
    "other keys": pickle.dumps({b"pixels": PIXELS["test_batch"]}, protocol=2),
    "no dict": pickle.dumps([1, 2], protocol=2),
    "other size": pickle.dumps({b"data": np.zeros((2, 100), np.uint8), b"labels": [1, 2]}, protocol=2),
    "floats": pickle.dumps({b"data": np.zeros((2, 3072)), b"labels": [1, 2]}, protocol=2),
    "unknown codec": python3("test_batch").replace(b"latin1", b"latinX"),
}


@pytest.mark.parametrize("content", BROKEN_PICKLES.values(), ids=BROKEN_PICKLES)
def test_a_broken_python_batch_is_named(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, "python3") / "test_batch"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_source(f"cifar10:{tmp_path}")
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("label", [10, 255, 300, -1])
def test_a_label_beyond_the_classes_is_refused(tmp_path: Path, label: int) -> None:
    path = write(tmp_path, "python3") / "test_batch"
    path.write_bytes(pickle.dumps({b"data": PIXELS["test_batch"], b"labels": [0, label, 0, 0]}, protocol=2))
    with pytest.raises(DataError, match=rf"label\[1\]={label}"):
        load_source(f"cifar10:{tmp_path}")


@pytest.mark.parametrize("size", [0, 3072, 2 * 3073 + 1])
def test_a_binary_batch_that_is_cut_off_is_named(tmp_path: Path, size: int) -> None:
    path = write(tmp_path) / "data_batch_3.bin"
    path.write_bytes(binary("data_batch_3")[:size])
    assert len(load_source(f"cifar10:{tmp_path}", split="test")) == ROWS
    with pytest.raises(DataError, match=f"3073 .*{size}") as caught:
        load_source(f"cifar10:{tmp_path}", split="train")
    assert str(path) in str(caught.value)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    path = write(tmp_path) / "data_batch_3.bin"
    path.unlink()
    with pytest.raises(DataError, match=str(path)):
        load_source(f"cifar10:{tmp_path}", split="train")


def test_without_data_the_user_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGMAX_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"cifar10:DIR.*--download") as caught:
        load_source("cifar10")
    assert str(tmp_path) in str(caught.value)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name in the base class)
        """Say nothing."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that a server on this machine serves; the archive is fetched from it."""
    folder = tmp_path / "site"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setattr(cifar10, "ARCHIVE_URL", f"http://127.0.0.1:{server.server_port}/cifar.tar.gz")
        yield folder
        server.shutdown()
        thread.join()


def publish(site: Path, monkeypatch: pytest.MonkeyPatch, batches: list[str], *, size: int | None = None) -> None:
    """Put an archive of these batches, cut off at `size`, on the site, and its checksum into the code."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for batch in batches:
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{batch}.bin")
            info.size = len(binary(batch))
            tar.addfile(info, io.BytesIO(binary(batch)))
    content = buffer.getvalue()[:size]
    (site / "cifar.tar.gz").write_bytes(content)
    monkeypatch.setattr(cifar10, "ARCHIVE_HASH", f"md5:{hashlib.md5(content).hexdigest()}")


def test_a_missing_set_is_fetched_only_when_allowed(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(site, monkeypatch, BATCHES)
    root = tmp_path / "data"
    with pytest.raises(DataError, match="--download"):
        load_source(f"cifar10:{root}")
    check(load_source(f"cifar10:{root}", split="test", download=True), "test")
    (site / "cifar.tar.gz").unlink()
    check(load_source(f"cifar10:{root}", split="train", download=True), "train")


class Screen(io.StringIO):
    """What a person would see."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_download_shows_its_progress_to_whom_watches(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_watched: bool
) -> None:
    publish(site, monkeypatch, BATCHES)
    screen = Screen() if is_watched else io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    load_source(f"cifar10:{tmp_path / 'data'}", download=True)
    assert ("100%" in screen.getvalue()) == is_watched


def test_an_archive_with_another_checksum_is_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(site, monkeypatch, BATCHES)
    monkeypatch.setattr(cifar10, "ARCHIVE_HASH", "md5:" + "0" * 32)
    root = tmp_path / "data"
    with pytest.raises(DataError, match="hash"):
        load_source(f"cifar10:{root}", download=True)
    assert list(root.rglob("*.bin")) == []


def test_an_unreachable_archive_is_named(site: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1.*404"):
        load_source(f"cifar10:{tmp_path / 'data'}", download=True)


@pytest.mark.parametrize(("batches", "size"), [(BATCHES[:5], None), (BATCHES[1:], None), (BATCHES, 30_000)])
def test_half_an_archive_is_never_used(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, batches: list[str], size: int | None
) -> None:
    publish(site, monkeypatch, batches, size=size)
    root = tmp_path / "data"
    with pytest.raises(DataError, match="archive"):
        load_source(f"cifar10:{root}", download=True)
    with pytest.raises(DataError, match="--download"):
        load_source(f"cifar10:{root}")
    publish(site, monkeypatch, BATCHES)
    check(load_source(f"cifar10:{root}", split="train", download=True), "train")


def test_what_was_left_of_an_interrupted_unpacking_is_replaced(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(site, monkeypatch, BATCHES)
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "data_batch_1.bin").write_bytes(binary("data_batch_1")[:-1])
    check(load_source(f"cifar10:{folder.parent}", split="train", download=True), "train")


@pytest.mark.parametrize(("split", "size", "first"), [("train", 50_000, "frog"), ("test", 10_000, "cat")])
def test_the_real_set_is_the_official_one(cifar10_folder: Path, split: Split, size: int, first: str) -> None:
    source = load_source(f"cifar10:{cifar10_folder}", split=split)
    np.testing.assert_array_equal(np.bincount(source.labels), [size // 10] * 10)
    assert source.class_names[int(source.labels[0])] == first
    mean = source.images(range(0, size, 10)).mean(axis=(0, 2, 3))
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=0.01)  # the published mean of the training set
