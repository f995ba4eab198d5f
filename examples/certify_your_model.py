"""Certify a model of your own with per-input sigma, settled by a memory."""

import torch

from sigmax import CertificateMemory, HalvingSearch, SmoothedClassifier
from sigmax.data import load_source
from sigmax.rounding import format_down
from sigmax.train import Recipe, Training


def main() -> None:
    # Any torch.nn.Module in eval mode will do; here, a small network trained under noise.
    training = Training(
        Recipe(arch="digits-cnn", sigma=0.25, epochs=10, batch=64), load_source("digits", split="train")
    )
    for _ in training:
        pass
    model = training.network.eval()

    test = load_source("digits", split="test")
    inputs = torch.from_numpy(test.images(range(8)))
    g = SmoothedClassifier(model, num_classes=10, sigma=HalvingSearch(initial=0.25))
    certificates = g.certify(inputs, n=10_000, alpha=0.001, seed=0)

    memory = CertificateMemory(norm=2, fingerprint=g.fingerprint)
    for image, label, certificate in zip(inputs, test.labels[:8], certificates, strict=True):
        answer = memory.settle(image, certificate)
        said = "abstains" if answer.label is None else f"says {answer.label}"
        print(f"{said} (it is {label}), sigma {answer.sigma:.3f}, radius {format_down(answer.radius)}, {answer.rule}")
    memory.close()


if __name__ == "__main__":
    main()
