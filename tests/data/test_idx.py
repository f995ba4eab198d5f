import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sigmax.data import Split, load_source
from sigmax.errors import DataError

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, size=(12, 28, 28), dtype=np.uint8)
LABELS = RANDOM.integers(0, 10, size=12, dtype=np.uint8)


def idx(array: NDArray[np.uint8]) -> bytes:
    """An idx file: two zero bytes, 8 for unsigned bytes, the dimensions, their sizes, the data."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder: Path, prefix: str = "t10k", separator: str = "-", suffix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images", IMAGES), ("labels", LABELS)):
        content = idx(array)
        path = folder / f"{prefix}-{kind}{separator}idx{array.ndim}-ubyte{suffix}"
        path.write_bytes(gzip.compress(content) if suffix else content)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("separator", ["-", "."])
@pytest.mark.parametrize(("split", "prefix"), [("test", "t10k"), ("train", "train")])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_every_spelling_gives_the_same_images(
    tmp_path: Path, name: str, split: Split, prefix: str, separator: str, suffix: str
) -> None:
    write(tmp_path, prefix, separator, suffix)
    source = load_source(f"{name}:{tmp_path}", split=split)
    assert source.name == name
    assert source.shape == (1, 28, 28)
    assert source.levels == 255
    np.testing.assert_array_equal(source.labels, LABELS)
    np.testing.assert_array_equal(source.images(range(12)), IMAGES[:, None].astype(np.float32) / np.float32(255))


def test_the_classes_have_their_names(tmp_path: Path) -> None:
    write(tmp_path)
    assert load_source(f"mnist:{tmp_path}").class_names == tuple("0123456789")
    fashion = load_source(f"fashion-mnist:{tmp_path}").class_names
    assert len(fashion) == 10
    assert (fashion[0], fashion[9]) == ("T-shirt/top", "ankle boot")


def test_each_set_has_its_own_folder_in_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGMAX_DATA", str(tmp_path))
    write(tmp_path / "fashion-mnist")
    assert len(load_source("fashion-mnist")) == 12
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.*mnist:DIR"):
        load_source("mnist")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "00000803"),
        (idx(LABELS), "00000803.*00000801"),
        (idx(IMAGES)[:6], "16 bytes, got 6"),
        (idx(IMAGES)[:15], "16 bytes, got 15"),
        (idx(IMAGES)[:-1], "9408 .*9407"),
        (idx(IMAGES) + b"\0", "9408 .*9409"),
        # The product of these sizes is 0 in 64-bit arithmetic.
        (struct.pack(">4I", 0x803, 2**31, 2**31, 4), "18446744073709551616"),
    ],
    ids=["empty", "labels", "cut in a size", "cut in the last size", "cut off", "too long", "overflow"],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    write(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        load_source(f"mnist:{tmp_path}")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("damage", ["no gzip", "cut off", "flipped"])
def test_a_corrupt_gzip_file_is_named(tmp_path: Path, damage: str) -> None:
    write(tmp_path, suffix=".gz")
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    half = len(whole) // 2
    flipped = whole[:half] + bytes([whole[half] ^ 0xFF]) + whole[half + 1 :]
    path.write_bytes({"no gzip": idx(LABELS), "cut off": whole[:half], "flipped": flipped}[damage])
    with pytest.raises(DataError) as caught:
        load_source(f"mnist:{tmp_path}")
    assert str(path) in str(caught.value)


def test_missing_labels_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte") as caught:
        load_source(f"mnist:{tmp_path}")
    assert str(tmp_path) in str(caught.value)
