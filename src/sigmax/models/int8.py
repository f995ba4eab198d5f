"""Networks in 8-bit integers: several times as fast on CPUs, and another function than the network they come from.

No data is needed: ranges of activations are read off made-up images that have the spectrum of photographs, under
noise from none to much. So the result depends on the network, and on the versions of OpenVINO and NNCF.
"""

import logging
from contextlib import redirect_stdout
from hashlib import blake2b
from io import StringIO
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sigmax.errors import InvalidInputError, ModelError

if TYPE_CHECKING:
    import openvino

_BATCHES, _ROWS = 8, 64  # that ranges are read off, always in the same shape, because ranges depend on it
_LEVELS = (0.0, 0.25, 0.5, 1.0)  # of the noise: to the largest sigma that the field trains with
_MEAN, _DEVIATION = 0.47, 0.25  # of pixels in [0, 1], as photographs have them
_COLOUR = 0.35  # how much the channels differ, in parts of what they share
_STEPS = 256  # of a pixel between 0 and 1


def calibration_batches(shape: tuple[int, ...]) -> list[Tensor]:
    """Made-up noisy images, in [0, 1] before the noise, in batches (rows, *shape); the same at every call.

    Their amplitudes fall with one over the frequency, as those of photographs do.
    """
    if len(shape) != 3:
        raise InvalidInputError(f"expected images (channels, height, width) for 8-bit integers, got inputs of {shape}")
    channels, height, width = shape
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1 / max(height, width)  # the mean of an image varies like its slowest wave
    levels = torch.tensor(_LEVELS, dtype=torch.float64).repeat(_ROWS // len(_LEVELS))
    stream = torch.Generator("cpu").manual_seed(0)

    def white(maps: int) -> Tensor:
        return torch.randn(_ROWS, maps, height, width, generator=stream, dtype=torch.float64)

    def batch() -> Tensor:
        spectrum = torch.fft.rfft2(white(1) + _COLOUR * white(channels))  # rows channels height width/2+1
        waves: Tensor = torch.fft.irfft2(spectrum / frequency, s=(height, width))
        images = (_MEAN + _DEVIATION * waves / waves.std(dim=(1, 2, 3), keepdim=True)).clamp(0, 1)
        noisy = images + levels[:, None, None, None] * white(channels)
        # Coarse steps: the last bits of a transform or a sum depend on how many threads computed it.
        return (noisy * _STEPS).round().float() / _STEPS

    return [batch() for _ in range(_BATCHES)]


def quantize(model: nn.Module, shape: tuple[int, ...], device: torch.device) -> "openvino.Model":
    """The network, which is on this device, for inputs of this shape, with weights and activations of 8 bits.

    Its batch can be reshaped.
    """
    import openvino

    batches = calibration_batches(shape)
    graph = openvino.convert_model(torch.export.export(model, (batches[0].to(device),)))
    with redirect_stdout(StringIO()):  # bars and greetings would come between the lines of --json
        try:
            import nncf
        except ImportError:
            raise ModelError("expected nncf to be installed, got none; pip install 'sigmax[openvino]'") from None
        nncf.set_log_level(logging.ERROR)  # it tells of every layer
        how = nncf.AdvancedQuantizationParameters(
            # Some CPUs add products of 8 bits up in 16: small enough, these never overflow, and answers are the same.
            overflow_fix=nncf.OverflowFix.ENABLE,
            # It fits the means of activations to those of these images, which no real ones have.
            disable_bias_correction=True,
        )
        samples = nncf.Dataset([batch.numpy() for batch in batches])
        return nncf.quantize(graph, samples, subset_size=len(batches), advanced_parameters=how)


def digest(graph: "openvino.Model") -> str:
    """What tells these weights and ranges from others."""
    found = blake2b(digest_size=8)
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "Constant":
            found.update(node.get_data().tobytes())
    return found.hexdigest()
