from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sigmax.models import BaseClassifier, build_network
from sigmax.noise import Gaussian
from sigmax.sampling import count_classes, default_batch_size
from sigmax.streams import Stage, random_stream

CPU = torch.device("cpu")


def counts(
    classifier: BaseClassifier,
    x: Tensor,
    *,
    n: int,
    indices: Sequence[int],
    batch_size: int = 64,
    levels: int | None = None,
) -> Tensor:
    streams = [random_stream(0, i, Stage.ESTIMATION, CPU) for i in indices]
    sigma = torch.full((len(x),), 0.3)
    return count_classes(
        classifier, x, sigma, noise=Gaussian(), levels=levels, n=n, streams=streams, batch_size=batch_size
    )


@pytest.fixture(scope="module")
def network() -> BaseClassifier:
    torch.manual_seed(0)
    return BaseClassifier(build_network("digits-cnn", num_classes=10, in_channels=1).eval(), num_classes=10)


@settings(max_examples=20)
@given(
    st.integers(1, 9),
    st.integers(1, 150),
    st.integers(1, 300),
    st.sampled_from([None, 16]),
    st.randoms(use_true_random=False),
)
def test_counts_do_not_depend_on_how_inputs_are_batched(
    network: BaseClassifier, inputs: int, n: int, batch_size: int, levels: int | None, random: Random
) -> None:
    x = torch.randint(17, (9, 1, 8, 8), generator=torch.Generator().manual_seed(1))[:inputs] / 16
    together = counts(network, x, n=n, indices=range(inputs), batch_size=batch_size, levels=levels)
    assert together.sum(dim=1).tolist() == [n] * inputs
    order = list(range(inputs))
    random.shuffle(order)
    cut = random.randint(0, inputs)
    parts = [part for part in (order[:cut], order[cut:]) if part]
    apart = torch.cat(
        [counts(network, x[part], n=n, indices=part, batch_size=batch_size, levels=levels) for part in parts]
    )
    assert torch.equal(apart, together[torch.tensor(order)])


@pytest.mark.parametrize("arch", ["resnet20", "fast-resnet9"])
def test_convolutional_networks_answer_alike_in_every_place_of_a_batch(arch: str) -> None:
    torch.manual_seed(0)
    classifier = BaseClassifier(build_network(arch, num_classes=10, in_channels=3).eval(), num_classes=10)
    x = torch.rand(3, 3, 32, 32)
    together = counts(classifier, x, n=40, indices=[5, 6, 7])
    assert torch.equal(together[1:2], counts(classifier, x[1:2], n=40, indices=[6]))
    assert torch.equal(together[[2, 0]], counts(classifier, x[[2, 0]], n=40, indices=[7, 5]))


def test_every_forward_pass_has_one_shape() -> None:
    shapes = []

    def model(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return torch.stack([x.sum(dim=1), -x.sum(dim=1)], dim=1)

    classifier = BaseClassifier(model, num_classes=2)
    counts(classifier, torch.zeros(3, 300), n=50, indices=range(3), batch_size=64)
    assert set(shapes) == {(64, 300)}
    assert len(shapes) == 3  # 150 samples, filled across inputs


@pytest.mark.parametrize("n", [16, 36, 64, 100])
def test_short_rounds_share_a_batch(n: int) -> None:
    rows: list[int] = []

    def model(x: Tensor) -> Tensor:
        rows.append(len(x))
        return x.flatten(1)[:, :3]

    classifier, inputs = BaseClassifier(model, num_classes=3), 40
    x = torch.rand(inputs, 1, 8, 8)
    found = counts(classifier, x, n=n, indices=range(inputs), batch_size=256)
    assert found.sum(dim=1).tolist() == [n] * inputs
    assert len(rows) == -(-inputs * n // 256)
    alone = [counts(classifier, x[i : i + 1], n=n, indices=[i], batch_size=256) for i in range(inputs)]
    assert torch.equal(found, torch.cat(alone))


def test_progress_counts_the_samples_and_nothing_else(network: BaseClassifier) -> None:
    done: list[int] = []
    count_classes(
        network,
        torch.rand(3, 1, 8, 8),
        torch.full((3,), 0.1),
        noise=Gaussian(),
        n=70,
        streams=[random_stream(0, i, Stage.PILOT, CPU) for i in range(3)],
        batch_size=64,
        on_progress=done.append,
    )
    assert sum(done) == 3 * 70


def test_sizes_follow_the_input_alone() -> None:
    assert [default_batch_size(d) for d in (2, 64, 3_072, 150_528, 10**8)] == [1024, 1024, 512, 16, 16]


@pytest.mark.parametrize(("dimensions", "rows", "draws"), [(16, 32, 4), (15, 20, 25)])
def test_small_batches_are_drawn_together_where_all_begin_at_multiples_of_64_bytes(
    monkeypatch: pytest.MonkeyPatch, dimensions: int, rows: int, draws: int
) -> None:
    written, seen, write = list[int](), list[Tensor](), Gaussian.write

    def recorded(noise: Gaussian, out: Tensor, *args: Any, **how: Any) -> None:
        written.append(len(out))
        write(noise, out, *args, **how)

    def network(x: Tensor) -> Tensor:
        assert x.data_ptr() % 64 == 0
        seen.append(x.clone())
        return x[:, :2]

    monkeypatch.setattr(Gaussian, "write", recorded)
    classifier = BaseClassifier(network, num_classes=2, identity="the first two")
    found = counts(classifier, torch.zeros(1, dimensions), n=500, indices=[3], batch_size=rows)
    assert found.sum() == 500
    assert len(written) == draws
    assert {len(batch) for batch in seen} == {rows}
    assert not torch.cat(seen)[500:].any()
    drawn = Gaussian().draw(random_stream(0, 3, Stage.ESTIMATION, CPU), 500, (dimensions,), dtype=torch.float32)
    assert torch.equal(torch.cat(seen)[:500], 0.3 * drawn)
