"""Models of other libraries by name. `tests/test_habits.py` loads one of transformers for real."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from sigmax.data.preprocessing import Preprocessing
from sigmax.errors import ModelError
from sigmax.models import load_model
from sigmax.models.hub import HUBS, preprocess_of


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"size": {"height": 224, "width": 200}, "resample": 2}, "200x224"),
        ({"size": {"height": 224, "width": 224}, "resample": 3}, "224x224:bicubic"),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
            "256/224",
        ),
        ({"size": 256, "do_center_crop": True, "crop_size": 224, "resample": 3}, "256/224:bicubic"),
        ({"do_resize": False, "size": {"height": 1, "width": 1}}, "none"),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, None),  # whatever that does, it is none of ours
        ({}, None),
    ],
)
def test_the_settings_of_a_preprocessor_are_read(said: dict[str, Any], expected: str | None) -> None:
    assert preprocess_of(said) == expected
    if expected is not None:
        assert Preprocessing.parse(expected).text == expected


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed")
def test_a_missing_library_is_named() -> None:
    with pytest.raises(ModelError, match="timm to be installed"):
        load_model("timm:resnet18")


def test_a_model_of_timm_brings_its_normalisation_and_preprocessing(tmp_path: Path) -> None:
    timm: Any = pytest.importorskip("timm", reason="pip install timm")
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", pretrained=False, num_classes=4).eval()
    timm.models.save_for_hf(network, str(tmp_path))
    loaded = load_model(f"timm:local-dir:{tmp_path}")
    said = timm.data.resolve_model_data_config(network)
    channels, side, _ = said["input_size"]
    assert (loaded.num_classes, loaded.input_shape) == (4, (channels, side, side))
    assert loaded.preprocess == f"{int(side / said['crop_pct'])}/{side}:bicubic"
    x = torch.rand(2, channels, side, side)
    normalised = (x - torch.tensor(said["mean"]).view(3, 1, 1)) / torch.tensor(said["std"]).view(3, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), network(normalised))


def test_what_a_library_says_itself_cannot_be_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HUBS, "hf:", lambda name: pytest.fail(f"loaded {name}"))
    with pytest.raises(ModelError, match="--normalize"):
        load_model("hf:anything", normalize="imagenet")
