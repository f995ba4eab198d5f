import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

from sigmax.data import load_source
from sigmax.data.folder import read_image
from sigmax.data.preprocessing import Preprocessing
from sigmax.errors import DataError

RANDOM = np.random.default_rng(0)


def save(path: Path, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def noise(*shape: int) -> NDArray[np.uint8]:
    return RANDOM.integers(0, 256, size=shape, dtype=np.uint8)


def test_folders_named_by_numbers_keep_them_as_labels(tmp_path: Path) -> None:
    for name in ("007", "10", "2"):
        save(tmp_path / name / "a.png", noise(4, 4, 3))
    source = load_source(f"folder:{tmp_path}")
    np.testing.assert_array_equal(source.labels, [7, 10, 2])  # in the order of the names
    assert source.class_names == tuple(str(i) for i in range(11))


@pytest.mark.parametrize("names", [("cat", "ant", "bee"), ("10", "2", "bee"), ("1", "²", "³")])
def test_other_folders_are_numbered_by_the_alphabet(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        save(tmp_path / name / "a.png", noise(4, 4, 3))
    source = load_source(f"folder:{tmp_path}")
    assert source.class_names == tuple(sorted(names))
    np.testing.assert_array_equal(source.labels, [0, 1, 2])


def test_the_digest_sees_every_file(tmp_path: Path) -> None:
    for place in ("a/1.png", "a/2.png", "b/1.png"):
        save(tmp_path / "here" / place, noise(4, 4, 3))
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    here, there = (f"folder:{tmp_path / name}" for name in ("here", "there"))
    assert load_source(here).digest() == load_source(there).digest()
    save(tmp_path / "there" / "a" / "2.png", np.zeros((4, 4, 3), np.uint8))
    assert load_source(here).digest() != load_source(there).digest()


def test_the_digest_sees_an_image_replaced_by_one_of_equal_size(tmp_path: Path) -> None:
    for place in ("a/1.bmp", "a/2.bmp", "b/1.bmp"):
        save(tmp_path / place, np.zeros((4, 4, 3), np.uint8))
    before, size = load_source(f"folder:{tmp_path}").digest(), (tmp_path / "a" / "2.bmp").stat().st_size
    save(tmp_path / "a" / "2.bmp", np.full((4, 4, 3), 255, np.uint8))
    assert (tmp_path / "a" / "2.bmp").stat().st_size == size
    assert load_source(f"folder:{tmp_path}").digest() != before


def test_the_digest_sees_a_preprocessing_that_leaves_the_first_and_last_image_alone(tmp_path: Path) -> None:
    for place, size in (("a/1.png", 4), ("a/2.png", 9), ("b/1.png", 4)):
        save(tmp_path / place, noise(size, size, 3))
    smooth, sharp = (load_source(f"folder:{tmp_path}", preprocess=how) for how in ("4x4", "4x4:bicubic"))
    np.testing.assert_array_equal(smooth.images([0, 2]), sharp.images([0, 2]))
    assert not np.array_equal(smooth.images([1]), sharp.images([1]))
    assert smooth.digest() != sharp.digest()
    usual = [load_source(f"imagenet:{tmp_path}", preprocess=how).digest() for how in (None, "imagenet", "256/224")]
    assert len(set(usual)) == 1


def test_images_come_by_class_then_name_and_nothing_else_counts(tmp_path: Path) -> None:
    pixels = [save(tmp_path / place, noise(5, 6, 3)) for place in ("a/1.png", "a/2.PNG", "b/1.bmp")]
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "a" / "._1.png").write_bytes(b"what a Mac leaves beside an image")
    save(tmp_path / ".cache" / "x.png", noise(5, 6, 3))
    save(tmp_path / "x.png", noise(5, 6, 3))
    source = load_source(f"folder:{tmp_path}")
    assert source.name == f"folder:{tmp_path}"
    assert source.levels == 255
    np.testing.assert_array_equal(source.labels, [0, 0, 1])
    assert source.shape == (3, 5, 6)
    expected = np.stack([p.transpose(2, 0, 1) for p in pixels]).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(source.images([2, 0, 1]), expected[[2, 0, 1]])
    assert source.images([]).shape == (0, 3, 5, 6)


def test_channels_are_those_of_the_files_unless_the_caller_says(tmp_path: Path) -> None:
    gray, colour = save(tmp_path / "gray.png", noise(4, 5)), save(tmp_path / "colour.png", noise(4, 5, 3))
    Image.fromarray(gray).convert("LA").save(tmp_path / "alpha.png")
    np.testing.assert_array_equal(read_image(tmp_path / "gray.png"), gray[None] / np.float32(255))
    np.testing.assert_array_equal(read_image(tmp_path / "alpha.png"), gray[None] / np.float32(255))
    np.testing.assert_array_equal(read_image(tmp_path / "gray.png", channels=3), np.stack([gray] * 3) / np.float32(255))
    luma = read_image(tmp_path / "colour.png", channels=1)
    # The weights of ITU-R 601, to the nearest of 255 levels.
    np.testing.assert_allclose(luma[0] * 255, colour @ [0.299, 0.587, 0.114], atol=1)


def test_imagenet_is_always_in_colour(tmp_path: Path) -> None:
    save(tmp_path / "0" / "gray.png", noise(300, 280))
    save(tmp_path / "1" / "colour.png", noise(260, 290, 3))
    source = load_source(f"imagenet:{tmp_path}")
    assert source.shape == (3, 224, 224)
    assert source.images([0, 1]).shape == (2, 3, 224, 224)


@pytest.mark.parametrize("other", [(4, 5, 3), (4, 4)])
def test_an_image_unlike_the_first_is_named(tmp_path: Path, other: tuple[int, ...]) -> None:
    save(tmp_path / "a" / "1.png", noise(4, 4, 3))
    save(tmp_path / "a" / "2.png", noise(*other))
    source = load_source(f"folder:{tmp_path}")
    with pytest.raises(DataError, match=r"\(3, 4, 4\)") as caught:
        source.images([0, 1])
    assert str(tmp_path / "a" / "2.png") in str(caught.value)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".gif", ".webp", ".tiff"])
@pytest.mark.parametrize("part", [0.0, 0.2, 0.7])
def test_an_image_that_is_cut_off_is_named(tmp_path: Path, suffix: str, part: float) -> None:
    path = tmp_path / "a" / f"2{suffix}"
    save(tmp_path / "a" / "1.png", noise(40, 40, 3))
    save(path, noise(40, 40, 3))
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    source = load_source(f"folder:{tmp_path}")
    with pytest.raises(DataError) as caught:
        source.images([1])
    assert str(path) in str(caught.value)


def test_sixteen_bits_are_refused_instead_of_clipped(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(RANDOM.integers(0, 2**16, size=(4, 4), dtype=np.uint16)).save(path)
    with pytest.raises(DataError, match="I;16") as caught:
        read_image(path)
    assert str(path) in str(caught.value)


# Both torchvision's truncation of the long side and its rounding of the crop show in these sizes.
@pytest.mark.parametrize(
    ("size", "resized", "corner"),
    [
        ((427, 640), (256, 383), (16, 80)),
        ((640, 427), (383, 256), (80, 16)),
        ((100, 150), (256, 384), (16, 80)),
        ((256, 256), (256, 256), (16, 16)),
        ((375, 500), (256, 341), (16, 58)),
    ],
)
def test_imagenet_is_resized_and_cropped_as_by_torchvision(
    tmp_path: Path, size: tuple[int, int], resized: tuple[int, int], corner: tuple[int, int]
) -> None:
    pixels = save(tmp_path / "0" / "a.png", noise(*size, 3))
    image = load_source(f"imagenet:{tmp_path}").images([0])[0]
    whole = torch.from_numpy(pixels.transpose(2, 0, 1)[None].astype(np.float32))
    scaled = interpolate(whole, size=resized, mode="bilinear", antialias=True, align_corners=False)[0].numpy()
    upper, left = corner
    # Pillow rounds to 8 bits after each of its two passes.
    np.testing.assert_allclose(image * 255, scaled[:, upper : upper + 224, left : left + 224], atol=1.01)
    np.testing.assert_array_equal(image, np.round(image * 255).astype(np.float32) / np.float32(255))


def test_an_image_smaller_than_the_crop_is_named(tmp_path: Path) -> None:
    save(tmp_path / "small.png", noise(30, 20, 3))
    with pytest.raises(DataError, match=r"24 x 24 .*20 x 30") as caught:
        read_image(tmp_path / "small.png", Preprocessing(crop=24))
    assert str(tmp_path / "small.png") in str(caught.value)


@pytest.mark.parametrize("kind", ["imagenet", "folder"])
def test_a_folder_without_images_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "empty" / "class").mkdir(parents=True)
    with pytest.raises(DataError, match="empty"):
        load_source(f"{kind}:{tmp_path / 'empty'}")
    with pytest.raises(DataError, match="nowhere"):
        load_source(f"{kind}:{tmp_path / 'nowhere'}")


def test_the_folders_of_imagenet_at_hand_give_their_class() -> None:
    folder = Path(__file__).parents[2].parent / "shared" / "data" / "imagenet-val50"
    if not folder.is_dir():
        pytest.skip("the ImageNet images are not beside the repository (../shared/data/imagenet-val50)")
    source = load_source(f"imagenet:{folder}")
    np.testing.assert_array_equal(source.labels, range(0, 1000, 20))
    assert source.images([0, 49]).shape == (2, 3, 224, 224)
