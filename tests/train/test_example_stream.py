import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmax.data import ArraySource
from sigmax.errors import InvalidInputError
from sigmax.train.examples import ExampleStream, crop_and_flip, cut_out


def source(count: int = 50, size: int = 16) -> ArraySource:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, 3, size, size)).astype(np.uint8)
    return ArraySource("made-up", pixels, np.arange(count) % 4, "abcd", levels=255)


def test_crop_and_flip_against_a_loop_over_pixels() -> None:
    random = np.random.default_rng(0)
    images = random.random((6, 3, 16, 16), dtype=np.float32)
    shifts, flips = random.integers(0, 5, (6, 2)), random.random(6) < 0.5
    found = crop_and_flip(images, shifts, flips)
    for i, (down, right) in enumerate(shifts):
        for row in range(16):
            for column in range(16):
                from_row, from_column = row + down - 2, (15 - column if flips[i] else column) + right - 2
                inside = 0 <= from_row < 16 and 0 <= from_column < 16
                expected = images[i, :, from_row, from_column] if inside else np.zeros(3)
                np.testing.assert_array_equal(found[i, :, row, column], expected)


def test_cut_out_replaces_one_square_by_the_mean() -> None:
    random = np.random.default_rng(0)
    images = random.random((50, 3, 16, 16), dtype=np.float32)
    found = cut_out(images, random.random((50, 2)))
    for image, cut in zip(images, found, strict=True):
        changed = (image != cut).any(axis=0)
        rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
        assert len(rows) <= 5
        assert len(columns) <= 5
        assert changed.sum() == len(rows) * len(columns) > 0
        np.testing.assert_allclose(
            cut[:, changed], np.repeat(image.mean(axis=(1, 2))[:, None], changed.sum(), 1), rtol=1e-5
        )
    assert found.dtype == np.float32


@given(st.integers(1, 60), st.integers(0, 3), st.sampled_from(["none", "crop", "crop-flip", "crop-flip-cutout"]))
def test_an_epoch_shows_no_example_twice(batch: int, epoch: int, augment: str) -> None:
    stream = ExampleStream(source(), batch=batch, augment=augment, seed=1)  # type: ignore[arg-type]
    steps = stream.steps_per_epoch
    shown = np.concatenate([stream.at(epoch * steps + i).indices.numpy() for i in range(steps)])
    assert len(set(shown.tolist())) == len(shown) == steps * stream.batch
    assert len(shown) > 50 - stream.batch


def test_epochs_differ_and_a_step_is_always_the_same() -> None:
    stream = ExampleStream(source(), batch=10, augment="crop-flip", seed=0)
    first, later = stream.at(0), stream.at(stream.steps_per_epoch)
    again = ExampleStream(source(), batch=10, augment="crop-flip", seed=0).at(0)
    assert not np.array_equal(first.indices, later.indices)
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.labels, again.indices % 4)
    other = ExampleStream(source(), batch=10, augment="crop-flip", seed=1).at(0)
    assert not np.array_equal(first.indices, other.indices)


def test_without_augmentation_images_are_as_they_are() -> None:
    examples = ExampleStream(source(), batch=10, augment="none", seed=0).at(0)
    np.testing.assert_array_equal(examples.x, source().images(examples.indices.tolist()))


def test_processes_share_a_batch_without_overlap() -> None:
    whole = ExampleStream(source(), batch=10, augment="crop", seed=0).at(3)
    shares = [ExampleStream(source(), batch=10, augment="crop", seed=0, rank=r, processes=2).at(3) for r in (0, 1)]
    np.testing.assert_array_equal(whole.x, np.concatenate([share.x for share in shares]))
    np.testing.assert_array_equal(whole.labels, np.concatenate([share.labels for share in shares]))
    assert all(np.array_equal(share.indices, whole.indices) for share in shares)


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="batch=10"):
        ExampleStream(source(), batch=10, augment="none", seed=0, processes=3)
