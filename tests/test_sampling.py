from collections.abc import Sequence
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.models import BaseClassifier, build_network
from sigmax.noise import Gaussian, SmoothingDistribution
from sigmax.sampling import Stage, _mix, count_classes, default_batch_size, random_stream, tile_size

CPU = torch.device("cpu")


def counts(
    classifier: BaseClassifier,
    x: Tensor,
    *,
    n: int,
    indices: Sequence[int],
    batch_size: int = 64,
    noise: SmoothingDistribution | None = None,
) -> Tensor:
    streams = [random_stream(0, i, Stage.ESTIMATION, CPU) for i in indices]
    sigma = torch.full((len(x),), 0.3)
    return count_classes(classifier, x, sigma, noise=noise or Gaussian(), n=n, streams=streams, batch_size=batch_size)


@pytest.fixture(scope="module")
def network() -> BaseClassifier:
    torch.manual_seed(0)
    return BaseClassifier(build_network("digits-cnn", num_classes=10, in_channels=1).eval(), num_classes=10)


def test_streams_of_one_seed_all_differ() -> None:
    # The CPU generator keeps 32 bits of its seed: these must differ there.
    low = {
        random_stream(7, index, stage, CPU).initial_seed() & 0xFFFFFFFF for index in range(20_000) for stage in Stage
    }
    assert len(low) == 20_000 * len(Stage)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_mixing_is_one_to_one(a: int, b: int) -> None:
    assert (_mix(a) == _mix(b)) == (a == b)


def test_seeds_and_stages_give_other_noise() -> None:
    def draw(seed: int, stage: Stage) -> list[float]:
        return torch.randn(4, generator=random_stream(seed, 3, stage, CPU)).tolist()

    assert draw(0, Stage.SEARCH) == draw(0, Stage.SEARCH)
    assert draw(0, Stage.SEARCH) != draw(0, Stage.ESTIMATION)
    assert draw(0, Stage.SEARCH) != draw(1, Stage.SEARCH)
    assert draw(-1, Stage.SEARCH) != draw(1, Stage.SEARCH)


def test_an_index_outside_the_streams_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=str(2**29)):
        random_stream(0, 2**29, Stage.SEARCH, CPU)


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 150), st.integers(1, 300), st.randoms(use_true_random=False))
def test_counts_do_not_depend_on_how_inputs_are_batched(
    network: BaseClassifier, inputs: int, n: int, batch_size: int, random: Random
) -> None:
    x = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(1))[:inputs]
    together = counts(network, x, n=n, indices=range(inputs), batch_size=batch_size)
    assert together.sum(dim=1).tolist() == [n] * inputs
    order = list(range(inputs))
    random.shuffle(order)
    cut = random.randint(0, inputs)
    parts = [part for part in (order[:cut], order[cut:]) if part]
    apart = torch.cat([counts(network, x[part], n=n, indices=part, batch_size=batch_size) for part in parts])
    assert torch.equal(apart, together[torch.tensor(order)])


class Counted(SmoothingDistribution):
    """Gaussian noise that knows how it was drawn; backwards, tiles drawn at once differ from tiles drawn apart."""

    norm = 2
    radius, probability, soft_radius = Gaussian.radius, Gaussian.probability, Gaussian.soft_radius

    def __init__(self, *, is_backwards: bool) -> None:
        self.is_backwards = is_backwards
        self.draws: list[int] = []

    def fill(self, out: Tensor, *, generator: torch.Generator) -> Tensor:
        self.draws.append(len(out))
        out.normal_(generator=generator)
        return out.copy_(out.flip(0)) if self.is_backwards else out


@pytest.mark.parametrize("is_backwards", [False, True])
def test_noise_is_drawn_at_once_only_where_that_changes_nothing(network: BaseClassifier, is_backwards: bool) -> None:
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    noise = Counted(is_backwards=is_backwards)
    together = counts(network, x, n=300, indices=range(3), batch_size=256, noise=noise)
    apart = torch.cat([counts(network, x[i : i + 1], n=300, indices=[i], batch_size=64, noise=noise) for i in range(3)])
    assert torch.equal(together, apart)
    noise.draws.clear()
    counts(network, x, n=320, indices=range(3), batch_size=256, noise=noise)
    tiles = 3 * 320 // tile_size(64)
    assert sum(noise.draws) == 3 * 320
    assert len(noise.draws) == tiles if is_backwards else len(noise.draws) < tiles / 2


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
    assert len(shapes) == 3  # 3 x 50 samples in tiles of 32: 192 rows, filled across inputs


@pytest.mark.parametrize("n", [16, 36, 64, 100])
def test_short_rounds_share_a_batch(n: int) -> None:
    """A tile of small inputs is longer than a round of a search: what is not needed of it is not asked."""
    rows: list[int] = []

    def model(x: Tensor) -> Tensor:
        rows.append(len(x))
        return x.flatten(1)[:, :3]

    classifier, inputs = BaseClassifier(model, num_classes=3), 40
    x = torch.rand(inputs, 1, 8, 8)
    assert tile_size(64) == 64
    found = counts(classifier, x, n=n, indices=range(inputs), batch_size=256)
    assert found.sum(dim=1).tolist() == [n] * inputs
    per_batch = 256 // n if n <= 64 else 2
    assert len(rows) <= -(-inputs // per_batch)
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
    assert [tile_size(d) for d in (2, 64, 784, 3_072, 150_528)] == [64, 64, 16, 4, 1]
    assert [default_batch_size(d) for d in (2, 64, 3_072, 150_528, 10**8)] == [1024, 1024, 512, 16, 16]
