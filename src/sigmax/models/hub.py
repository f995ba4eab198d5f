"""Models of other libraries by their usual names: `timm:NAME`, and `hf:NAME` for transformers.

They say their own normalisation and preprocessing. Downloads are left to the library, which also takes a folder.
"""

from collections.abc import Callable, Mapping
from typing import Any, final

from torch import Tensor, nn

from sigmax.errors import ModelError, one_line
from sigmax.models.normalisation import Normalize

_BICUBIC = 3  # as Pillow counts its filters


@final
class LogitsOf(nn.Module):
    """A network of transformers as a function from pixels to logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = network.training

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        return self.network(pixel_values=x).logits  # type: ignore[no-any-return]


@final
class HubModel:
    """A network with what its library says of it."""

    def __init__(
        self,
        network: nn.Module,
        *,
        num_classes: int,
        normalize: Normalize,
        preprocess: str | None,
        input_shape: tuple[int, ...] | None,
    ) -> None:
        self.network = network
        self.num_classes = num_classes
        self.normalize = normalize
        self.preprocess = preprocess
        self.input_shape = input_shape


def load_hf(name: str) -> HubModel:
    """An image classifier of transformers, from its hub, its cache or a folder."""
    try:
        import transformers
        from transformers.image_processing_base import ImageProcessingMixin
    except ImportError:
        raise ModelError(f"expected transformers to be installed for hf:{name}, got none; install it") from None
    network = _loaded(f"hf:{name}", lambda: transformers.AutoModelForImageClassification.from_pretrained(name))
    said, _ = _loaded(f"hf:{name}", lambda: ImageProcessingMixin.get_image_processor_dict(name))
    is_normalised = said.get("do_normalize", "image_mean" in said)
    normalize = Normalize(said["image_mean"], said["image_std"]) if is_normalised else Normalize((), ())
    preprocess = preprocess_of(said)
    channels = getattr(network.config, "num_channels", 3)
    side = said.get("crop_size") if said.get("do_center_crop") else said.get("size")
    shape = None
    if isinstance(side, Mapping) and {"height", "width"} <= set(side):
        shape = (channels, int(side["height"]), int(side["width"]))
    return HubModel(
        LogitsOf(network.eval()),
        num_classes=int(network.config.num_labels),
        normalize=normalize,
        preprocess=preprocess,
        input_shape=shape,
    )


def preprocess_of(said: Mapping[str, Any]) -> str | None:
    """The resize and crop of a preprocessor's settings; None where these say another one than sigmax can do."""
    size, crop = said.get("size") or {}, said.get("crop_size") or {}
    size = {"shortest_edge": size} if isinstance(size, int) else size
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    how = ":bicubic" if said.get("resample") == _BICUBIC else ""
    if not said.get("do_resize", True):
        return "none"
    if said.get("do_center_crop") and "shortest_edge" in size and crop.get("height") == crop.get("width"):
        return f"{size['shortest_edge']}/{crop['height']}{how}"
    if not said.get("do_center_crop") and {"height", "width"} <= set(size):
        return f"{size['width']}x{size['height']}{how}"
    return None


def load_timm(name: str) -> HubModel:
    """A classifier of timm, with its pretrained weights."""
    try:
        import timm
    except ImportError:
        raise ModelError(f"expected timm to be installed for timm:{name}, got none; install it") from None
    network = _loaded(f"timm:{name}", lambda: timm.create_model(name, pretrained=True))
    said = timm.data.resolve_model_data_config(network)
    channels, side, _ = said["input_size"]
    how = ":bicubic" if said["interpolation"] == "bicubic" else ""
    return HubModel(
        network.eval(),
        num_classes=int(network.num_classes),
        normalize=Normalize(said["mean"], said["std"]),
        preprocess=f"{int(side / said['crop_pct'])}/{side}{how}",
        input_shape=(channels, side, side),
    )


def _loaded(spec: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # another library can raise anything
        got = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"expected {spec} to be a model that its library knows, got {got}") from error


HUBS: dict[str, Callable[[str], HubModel]] = {"hf:": load_hf, "timm:": load_timm}
