import numpy as np
import pytest
import torch
from torch import nn

from sigmax.models import build_network
from sigmax.train.optimizers import Muon, make_optimizer, orthogonalised


@pytest.mark.parametrize("shape", [(8, 27), (64, 96), (128, 16)])
def test_orthogonalised_keeps_the_singular_vectors_and_levels_the_values(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, _, right = np.linalg.svd(matrix.numpy(), full_matrices=False)
    scale = max(1.0, shape[0] / shape[1]) ** 0.5
    inner = left.T @ orthogonalised(matrix).numpy() @ right.T / scale
    values = np.diag(inner)
    np.testing.assert_allclose(inner, np.diag(values), atol=1e-9)
    assert (values > 0.3).all()
    assert (values < 1.3).all()


@pytest.mark.parametrize("shape", [(8, 27), (48, 432), (128, 16)])
def test_orthogonalised_is_the_iteration_of_the_quintic(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    scale = max(1.0, shape[0] / shape[1]) ** 0.5
    torch.testing.assert_close(orthogonalised(matrix).double(), x * scale, rtol=0, atol=1e-3)


def test_muon_step_against_the_formula() -> None:
    torch.manual_seed(0)
    conv, vector = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.randn(5))
    start = [conv.detach().clone(), vector.detach().clone()]
    optimizer = Muon([conv, vector], lr=0.1, momentum=0.9, weight_decay=0.5)
    gradients = [[torch.randn_like(p) for p in (conv, vector)] for _ in range(2)]
    momentum = [torch.zeros_like(p) for p in start]
    for given in gradients:
        for parameter, gradient in zip((conv, vector), given, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        for i, gradient in enumerate(given):
            momentum[i] = 0.9 * momentum[i] + gradient
            direction = gradient + 0.9 * momentum[i]
            if i == 0:
                direction = orthogonalised(direction.reshape(4, 27)).reshape(4, 3, 3, 3)
            start[i] = start[i] * (1 - 0.1 * 0.5) - 0.1 * direction
    torch.testing.assert_close(conv.detach(), start[0])
    torch.testing.assert_close(vector.detach(), start[1])


@pytest.mark.parametrize("kind", ["sgd", "muon"])
def test_every_parameter_is_trained_and_only_weights_decay(kind: str) -> None:
    network = build_network("resnet20", num_classes=10, in_channels=3)
    optimizer = make_optimizer(kind, network, lr=0.1, momentum=0.9, weight_decay=0.01)  # type: ignore[arg-type]
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in network.parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.ndim == 1:
                assert group["weight_decay"] == 0.0
            if parameter.ndim == 4:
                assert group["weight_decay"] == 0.01


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(4, 3, 3, 3), (64, 3, 3, 3), (16, 4, 1, 1)])
def test_muon_step_on_banks_of_all_shapes_and_layouts(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    start, gradient = torch.randn(shape), torch.randn(shape)
    bank = nn.Parameter(start.clone().to(memory_format=layout))
    bank.grad = gradient.to(memory_format=layout)
    Muon([bank], lr=0.1, momentum=0.0).step()
    moved = orthogonalised(gradient.flatten(1)).reshape(shape)
    torch.testing.assert_close(bank.detach(), start - 0.1 * moved, rtol=0, atol=1e-3)
