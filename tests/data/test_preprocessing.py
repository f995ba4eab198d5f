import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import Run
from sigmax.data import load_source
from sigmax.data.folder import read_image
from sigmax.data.preprocessing import Preprocessing
from sigmax.data.reference import DataReference
from sigmax.errors import DataError, InvalidInputError
from sigmax.serve import images


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photos" / "0" / "photo.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)).save(path)
    return path


@pytest.mark.parametrize("text", ["none", "256/224", "32x48", "256/224:bicubic", "32x48:bicubic"])
def test_a_preprocessing_reads_back(text: str) -> None:
    found = Preprocessing.parse(text)
    assert found.text == text
    assert Preprocessing.parse(found.text) == found
    assert Preprocessing.parse("imagenet") == Preprocessing.parse("256/224")


@pytest.mark.parametrize("text", ["", "256", "256/", "0/0", "32x0", "imagenet:nearest", "a/b", "256/224/2"])
def test_other_texts_are_refused(text: str) -> None:
    if text:
        with pytest.raises(InvalidInputError, match="256/224"):
            Preprocessing.parse(text)


def test_images_are_resized_and_cropped_as_said(photo: Path) -> None:
    with Image.open(photo) as image:
        stretched = np.asarray(image.resize((48, 32), Image.Resampling.BICUBIC), dtype=np.float32) / 255
        short = np.asarray(image.resize((80, 60), Image.Resampling.BILINEAR), dtype=np.float32) / 255
    np.testing.assert_array_equal(read_image(photo, Preprocessing.parse("48x32:bicubic")), stretched.transpose(2, 0, 1))
    np.testing.assert_array_equal(
        read_image(photo, Preprocessing.parse("60/40")), short[10:50, 20:60].transpose(2, 0, 1)
    )
    with pytest.raises(DataError, match=r"photo\.png: expected at least 99 x 99"):
        read_image(photo, Preprocessing.parse("60/99"))


def test_data_takes_the_preprocessing_of_the_model_where_nothing_else_is_said(photo: Path) -> None:
    folder = f"folder:{photo.parents[1]}"
    assert load_source(folder).shape == (3, 300, 400)
    assert DataReference(name=folder).suited("60/40").load().shape == (3, 40, 40)
    assert DataReference(name=folder, preprocess="48x32").suited("60/40").load().shape == (3, 32, 48)
    assert load_source(folder.replace("folder", "imagenet")).shape == (3, 224, 224)
    assert DataReference(name=folder.replace("folder", "imagenet")).suited("60/40").load().shape == (3, 40, 40)
    assert DataReference(name="digits").suited("60/40").load().shape == (1, 8, 8)  # no files


_FACTORY = """
import torch

class Small(torch.nn.Module):
    preprocess = "60/40"

    def forward(self, x):
        means = x.mean(dim=(2, 3))
        return torch.stack([means[:, 0], means[:, 1] - 9], dim=1)

def small(): return Small().eval()
"""


def test_certify_and_predict_see_the_same_input_and_share_a_memory(
    run: Run, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small_model.py").write_text(_FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    common = ["--sigma", "0.25", "--n", "100", "--n0", "8", "--batch", "16", "--classes", "2"]
    common += ["--memory", str(tmp_path / "memory.db")]
    for kind in ("folder", "imagenet"):
        data = ["--data", f"{kind}:{photo.parents[1]}", "--out", tmp_path / kind]
        code, _, err = run("certify", "small_model:small", *data, *common)
        assert code == 0, err
        assert json.loads((tmp_path / kind / "config.json").read_text())["data"]["preprocess"] == "60/40"
    code, out, err = run("predict", "small_model:small", photo, *common, "--json")
    assert code == 0, err
    assert json.loads(out)[0]["is_recalled"] is True
    code, out, err = run("predict", "small_model:small", photo, *common, "--preprocess", "48x32", "--json")
    assert code == 2  # the memory holds inputs of another shape
    assert "shape" in err


def test_the_service_reads_files_as_certify_does(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = Preprocessing.parse("60/40")
    found = images.decode_image(photo.read_bytes(), (3, 40, 40), how)
    np.testing.assert_array_equal(found, load_source(f"folder:{photo.parents[1]}", preprocess="60/40").images([0])[0])
    for shape, said in (((3, 300, 400), "40 x 40"), ((3, 60, 60), "40 x 40")):
        with pytest.raises(InvalidInputError, match=said):
            images.decode_image(photo.read_bytes(), shape, how)
    monkeypatch.setattr(images, "MOST_PIXELS", 300 * 400 - 1)
    with pytest.raises(InvalidInputError, match="at most"):
        images.decode_image(photo.read_bytes(), (3, 40, 40), how)
