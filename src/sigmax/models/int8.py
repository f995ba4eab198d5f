"""Quantization to 8-bit integers. On CPUs it is several times as fast, and it changes the function a little.

No data is needed: synthetic images with the spectrum of photographs, with and without noise, give the ranges of the
activations. So the result depends only on the network and on the versions of OpenVINO and NNCF.
"""

import logging
from collections.abc import Callable
from contextlib import redirect_stdout
from hashlib import blake2b
from io import StringIO
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigmax.errors import InvalidInputError, ModelError

if TYPE_CHECKING:
    import openvino

_BATCHES, _ROWS = 8, 64  # of the synthetic images; one shape for all networks, because the ranges depend on it
_LEVELS = (0.0, 0.25, 0.5, 1.0)  # sigmas of their noise, up to the largest that the field trains with
_MEAN, _DEVIATION = 0.47, 0.25  # of pixels in [0, 1], as in photographs
_COLOUR = 0.35  # amplitude of the differences between channels, relative to what they share
_STEPS = 256  # pixels are rounded to multiples of 1 / 256


def calibration_batches(shape: tuple[int, ...]) -> list[Tensor]:
    """Synthetic noisy images, in batches (rows, *shape); the same at every call.

    Before the noise, pixels are in [0, 1] and amplitudes fall with one over the frequency, as in photographs.
    """
    if len(shape) != 3:
        raise InvalidInputError(f"expected images (channels, height, width) for 8-bit integers, got inputs of {shape}")
    channels, height, width = shape
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1 / max(height, width)  # the mean varies as much as the slowest wave
    levels = torch.tensor(_LEVELS, dtype=torch.float64).repeat(_ROWS // len(_LEVELS))
    stream = torch.Generator("cpu").manual_seed(0)

    def white(maps: int) -> Tensor:
        return torch.randn(_ROWS, maps, height, width, generator=stream, dtype=torch.float64)

    def batch() -> Tensor:
        spectrum = torch.fft.rfft2(white(1) + _COLOUR * white(channels))  # rows channels height width/2+1
        waves: Tensor = torch.fft.irfft2(spectrum / frequency, s=(height, width))
        images = (_MEAN + _DEVIATION * waves / waves.std(dim=(1, 2, 3), keepdim=True)).clamp(0, 1)
        noisy = images + levels[:, None, None, None] * white(channels)
        # Rounded, because the last bits of a transform or a sum depend on the number of threads.
        return (noisy * _STEPS).round().float() / _STEPS

    return [batch() for _ in range(_BATCHES)]


def quantize(
    convert: Callable[[Tensor, Tensor], "openvino.Model"],
    shape: tuple[int, ...],
    level_range: tuple[float, float] | None,
) -> "openvino.Model":
    """A network with 8-bit weights and activations. The batch dimension of the result can be reshaped.

    Args:
        convert: Makes the graph of the network for inputs and noise levels like these.
        shape: Of one input.
        level_range: The noise levels that a noise-aware network was trained for; None: unknown.
    """
    batches = calibration_batches(shape)
    # Told the level of its noise; an image without any, the smallest one.
    tau = torch.tensor(_LEVELS).repeat(_ROWS // len(_LEVELS)).clamp(*(level_range or _LEVELS[1::2]))
    graph = convert(batches[0], tau)
    with redirect_stdout(StringIO()):  # progress bars and greetings would break the output of --json
        try:
            import nncf
        except ImportError:
            raise ModelError("expected nncf to be installed, got none; pip install 'sigmax[openvino]'") from None
        nncf.set_log_level(logging.ERROR)  # it logs every layer
        how = nncf.AdvancedQuantizationParameters(
            # Some CPUs add products of 8 bits in 16 bits. This keeps them small enough to give the same sums.
            overflow_fix=nncf.OverflowFix.ENABLE,
            # Bias correction would fit the mean activations to the synthetic images.
            disable_bias_correction=True,
        )
        samples = nncf.Dataset([[batch.numpy(), tau.numpy()][: len(graph.inputs)] for batch in batches])
        in_floats = nncf.IgnoredScope(names=_level_path(graph))
        return nncf.quantize(graph, samples, subset_size=len(batches), ignored_scope=in_floats, advanced_parameters=how)


def _level_path(graph: "openvino.Model") -> list[str]:
    """The nodes of a noise-aware network from the noise level to the maps that it scales and shifts.

    They stay in floating point: they are few, they become constants, and 8 bits hardly separate nearby levels.
    """
    parameters = [node.get_friendly_name() for node in graph.get_parameters()]
    image, *level = (_following(node) for node in graph.get_parameters())
    alone = level[0].keys() - image.keys() if level else set()

    def meets(node: "openvino.Node") -> bool:
        return any(port.get_source_output().get_node().get_friendly_name() in alone for port in node.inputs())

    return sorted((alone | {name for name, node in image.items() if meets(node)}).difference(parameters))


def _following(start: "openvino.Node") -> dict[str, "openvino.Node"]:
    """A node and all that depend on it, by name."""
    found: dict[str, openvino.Node] = {}
    left = [start]
    while left:
        node = left.pop()
        if node.get_friendly_name() not in found:
            found[node.get_friendly_name()] = node
            left += [port.get_node() for output in node.outputs() for port in output.get_target_inputs()]
    return found


def digest(graph: "openvino.Model") -> str:
    """A digest of all weights and ranges."""
    found = blake2b(digest_size=8)
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "Constant":
            found.update(node.get_data().tobytes())
    return found.hexdigest()
