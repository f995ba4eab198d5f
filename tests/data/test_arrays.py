import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sigmax.data import load_source
from sigmax.errors import DataError

BYTES = np.random.default_rng(0).integers(0, 256, size=(3, 2, 4, 5), dtype=np.uint8)


def save(folder: Path, **content: Any) -> str:
    np.savez(folder / "mine.npz", **content)
    return f"arrays:{folder / 'mine.npz'}"


def test_bytes_are_divided_by_255(tmp_path: Path) -> None:
    source = load_source(save(tmp_path, images=BYTES, labels=[0, 2, 1]))
    assert source.levels == 255
    assert source.shape == (2, 4, 5)
    assert source.class_names == ("0", "1", "2")
    np.testing.assert_array_equal(source.labels, [0, 2, 1])
    np.testing.assert_array_equal(source.images([0, 1, 2]), BYTES.astype(np.float32) / np.float32(255))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_floats_are_taken_as_they_are(tmp_path: Path, dtype: str) -> None:
    values = (BYTES / 7 - 20).astype(dtype)
    source = load_source(save(tmp_path, x=values, y=[0, 2, 1]))
    assert source.levels is None
    assert source.images([1]).dtype == np.float32
    np.testing.assert_array_equal(source.images([2, 0]), values[[2, 0]].astype(np.float32))


def test_classes_may_have_names(tmp_path: Path) -> None:
    names = ["cat", "dog", "emu", "fly"]
    assert load_source(save(tmp_path, images=BYTES, labels=[0, 2, 1], class_names=names)).class_names == tuple(names)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"images": BYTES}, r"\['images'\]"),
        ({"y": [0, 1, 2], "z": BYTES}, r"\['y', 'z'\]"),
        ({"images": BYTES, "labels": [0, 1]}, "3 images.* 2 labels"),
        ({"images": BYTES, "labels": [0, 1, -3]}, r"label\[2\]=-3"),
        ({"images": BYTES, "labels": [0, 1, 2], "class_names": ["a", "b"]}, r"label\[2\]=2"),
        ({"images": BYTES, "labels": [0, 1, 2], "class_names": "abc"}, r"class_names.*\(\)"),
        ({"images": BYTES, "labels": [0.0, 1.0, 2.0]}, r"float64 \(3,\)"),
        ({"images": BYTES, "labels": [[0], [1], [2]]}, r"int64 \(3, 1\)"),
        ({"images": np.zeros(3), "labels": [0, 1, 2]}, r"\(3,\)"),
        ({"images": BYTES.astype(np.int32), "labels": [0, 1, 2]}, "int32"),
        ({"images": np.array([[0.5], [1.0], [np.nan]]), "labels": [0, 1, 2]}, "input 2"),
        ({"images": np.array([[0.5], [1e300], [0.1]]), "labels": [0, 1, 2]}, "input 1"),
        ({"images": BYTES, "labels": [0, 1, 2**40]}, "1099511627776"),
        ({"images": BYTES[:0], "labels": np.zeros(0, int)}, "none"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, content: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        load_source(save(tmp_path, **content))
    assert str(tmp_path / "mine.npz") in str(caught.value)


class MakesFolder:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.mkdir, (self.path,)


def test_pickles_are_refused_and_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    spec = save(tmp_path, images=np.array([MakesFolder(proof)], dtype=object), labels=[0])
    with pytest.raises(DataError, match=r"\.npz"):
        load_source(spec)
    assert not proof.exists()
    with np.load(tmp_path / "mine.npz", allow_pickle=True) as file:
        file["images"]
    assert proof.exists()


def broken_files() -> dict[str, bytes]:
    whole, compressed, single = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(whole, images=BYTES, labels=[0, 1, 2])
    np.savez_compressed(compressed, images=BYTES, labels=[0, 1, 2])
    np.save(single, BYTES)
    start = compressed.getvalue().index(b"images.npy") + len(b"images.npy") + 20
    # The first byte of a deflated block: 7 is a kind of block that does not exist.
    flipped = compressed.getvalue()[:start] + b"\x07" + compressed.getvalue()[start + 1 :]
    return {
        "empty": b"",
        "text": b"images, labels",
        "cut off": whole.getvalue()[:-30],
        "no data": compressed.getvalue()[:20],
        "flipped": flipped,
        "npy": single.getvalue(),
    }


@pytest.mark.parametrize(("kind", "content"), broken_files().items())
def test_a_broken_file_is_named(tmp_path: Path, kind: str, content: bytes) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"\.npz") as caught:
        load_source(f"arrays:{path}")
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mine\.npz"):
        load_source(f"arrays:{tmp_path / 'mine.npz'}")


def test_the_digest_sees_every_pixel(tmp_path: Path) -> None:
    pixels = BYTES.copy()
    source = load_source(save(tmp_path, images=pixels, labels=[0, 2, 1]))
    pixels[1, 1, 2, 3] ^= 1
    other = load_source(save(tmp_path, images=pixels, labels=[0, 2, 1]))
    assert source.digest() != other.digest()
    assert source.digest() != load_source(save(tmp_path, images=BYTES, labels=[0, 1, 2])).digest()
    assert source.digest() == load_source(save(tmp_path, images=BYTES, labels=[0, 2, 1])).digest()
