import numpy as np
import pytest

from sigmax.data import Split, load_source


@pytest.mark.parametrize(("split", "size"), [("train", 1_297), ("test", 500)])
def test_every_split_has_its_size_and_sixteen_levels(split: Split, size: int) -> None:
    source = load_source("digits", split=split)
    images = source.images(range(len(source)))
    assert len(source) == size
    assert source.shape == images.shape[1:] == (1, 8, 8)
    assert source.class_names == tuple("0123456789")
    assert source.levels == 16
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1
    np.testing.assert_array_equal(images * 16, np.round(images * 16))
    assert set(source.labels.tolist()) == set(range(10))


def test_the_splits_share_no_digit() -> None:
    # No two of the 1,797 digits are equal, so a digit in both splits would show as an equal image.
    train, test = (load_source("digits", split=split) for split in ("train", "test"))
    images = np.concatenate([source.images(range(len(source))) for source in (train, test)])
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == 1_797


def test_images_come_in_the_order_asked_for() -> None:
    source = load_source("digits")
    np.testing.assert_array_equal(source.images([7, 3, 7]), source.images(range(8))[[7, 3, 7]])
    assert source.images([]).shape == (0, 1, 8, 8)
