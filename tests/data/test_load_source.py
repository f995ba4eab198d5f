from pathlib import Path

import numpy as np
import pytest

from sigmax.data import ArraySource, data_folder, load_source
from sigmax.errors import DataError


@pytest.mark.parametrize("spec", ["cifar100", "", "digits:somewhere", "imagenet", "folder:", "arrays"])
def test_an_unknown_data_set_is_told_what_there_is(spec: str) -> None:
    with pytest.raises(DataError) as caught:
        load_source(spec)
    for name in ("digits", "mnist", "fashion-mnist", "cifar10", "imagenet:DIR", "folder:DIR", "arrays:FILE.npz"):
        assert name in str(caught.value)
    assert f"got data={spec!r}" in str(caught.value)
    assert "did you mean imagenet?" not in str(caught.value)  # the name is right, its place is missing


@pytest.mark.parametrize(
    ("spec", "meant"), [("dgits", "digits"), ("cifar-10:here", "cifar10"), ("imagnet", "imagenet")]
)
def test_a_misspelt_data_set_is_met_with_what_was_meant(spec: str, meant: str) -> None:
    with pytest.raises(DataError, match=f"did you mean {meant}\\?"):
        load_source(spec)


def test_named_sets_are_looked_for_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGMAX_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    with pytest.raises(DataError, match=str(tmp_path / "mnist")):
        load_source("mnist")


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_place_it_is_the_cache_folder(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("SIGMAX_DATA", raising=False)
    monkeypatch.delenv("SIGMAX_CACHE")
    if value is not None:
        monkeypatch.setenv("SIGMAX_DATA", value)
    assert data_folder().name == "sigmax"
    assert data_folder().is_absolute()


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    np.savez(tmp_path / "mine.npz", images=np.zeros((2, 3)), labels=[0, 1])
    assert len(load_source("arrays:~/mine.npz")) == 2


@pytest.mark.parametrize(
    ("pixels", "labels", "problem"),
    [
        (np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 2]), r"label\[1\]=2"),
        (np.zeros((2, 1, 4, 4), np.uint8), np.array([-1, 0]), r"label\[0\]=-1"),
        (np.zeros((2, 1, 4, 4), np.uint8), np.array([0]), "2 images.* 1 labels"),
        (np.zeros((0, 1, 4, 4), np.uint8), np.zeros(0, np.int64), "none"),
    ],
)
def test_images_and_labels_must_fit_together(
    pixels: np.typing.NDArray[np.uint8], labels: np.typing.NDArray[np.int64], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        ArraySource("mine", pixels, labels, ["cat", "dog"], levels=255)
