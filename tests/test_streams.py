"""Streams: the bits of numpy's Philox, independent of who draws them, and independent of one another."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

import sigmax.sampler
import sigmax.train.draws
import sigmax.train.evaluation
from sigmax import HalvingSearch, SmoothedClassifier
from sigmax.data import ArraySource
from sigmax.errors import InvalidInputError
from sigmax.noise import Gaussian
from sigmax.streams import INDICES, Stage, Stream, philox, random_stream
from toy import small_network

CPU = torch.device("cpu")


def stream(seed: int = 0, index: int = 0, stage: Stage = Stage.ESTIMATION) -> Stream:
    return random_stream(seed, index, stage, CPU)


@settings(max_examples=30)
@given(st.integers(0, 2**128 - 1), st.integers(0, 2**60), st.integers(1, 50))
def test_tensor_operations_draw_the_bits_of_numpy(key: int, counter: int, blocks: int) -> None:
    expected = np.random.Philox(key=key, counter=counter).random_raw(4 * blocks).view(np.int64)
    np.testing.assert_array_equal(philox(key, counter, blocks, device=CPU).numpy(), expected)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 40))
def test_samples_do_not_depend_on_how_they_are_drawn(parts: list[int], size: int) -> None:
    whole = stream().words(sum(parts), size)
    one = stream()
    assert torch.equal(torch.cat([one.words(n, size) for n in parts]), whole)
    skipped = stream().skip(parts[0])
    assert torch.equal(skipped.words(sum(parts[1:]), size), whole[parts[0] :])


def test_seed_index_and_stage_each_give_other_bits() -> None:
    places = [(0, 0, Stage.SEARCH), (1, 0, Stage.SEARCH), (-1, 0, Stage.SEARCH), (2**255, 0, Stage.SEARCH)]
    places += [(0, 1, Stage.SEARCH), (0, 2**40, Stage.SEARCH), (0, 10, Stage.PILOT), (0, 1, Stage.PILOT)]
    drawn = [tuple(stream(*place).words(1, 4)[0].tolist()) for place in places]
    assert len(set(drawn)) == len(places)
    assert drawn == [tuple(stream(*place).words(1, 4)[0].tolist()) for place in places]


@pytest.mark.parametrize(("seed", "index"), [(2**256, 0), (-(2**255) - 1, 0), (0, -1), (0, INDICES)])
def test_what_has_no_stream_is_refused(seed: int, index: int) -> None:
    with pytest.raises(InvalidInputError, match=str(abs(seed or index))):
        stream(seed, index)


def test_a_stream_is_counted_in_samples_of_one_size() -> None:
    one = stream()
    one.words(2, 8)
    with pytest.raises(InvalidInputError, match="8"):
        one.words(2, 12)


def test_no_two_stages_draw_the_same_noise() -> None:
    firsts = [stream(stage=stage).words(1, 4).flatten().tolist() for stage in Stage.__members__.values()]
    assert len({tuple(words) for words in firsts}) == len(Stage.__members__)


def test_training_evaluation_and_certification_share_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network is judged and certified with other noise than it was trained and chosen with."""
    opened: dict[str, set[Stage]] = {}
    for place in (sigmax.train.draws, sigmax.train.evaluation, sigmax.sampler):

        def recorded(seed: int, index: int, stage: Stage, device: torch.device, place: str = place.__name__) -> Stream:
            opened.setdefault(place, set()).add(stage)
            return random_stream(seed, index, stage, device)

        monkeypatch.setattr(place, "random_stream", recorded)
    network, images = small_network(), np.zeros((3, 4), dtype=np.uint8)
    sigmax.train.draws.Draws.at(0, 0, batch=2, share=slice(0, 2), device=CPU)
    source = ArraySource("black", images, np.zeros(3, dtype=int), ["black"], levels=255)
    sigmax.train.evaluation.noisy_accuracy(network, source, noise=Gaussian(), sigma=0.25, seed=0)
    smoothed = SmoothedClassifier(network, num_classes=2, sigma=HalvingSearch(initial=0.25), levels=255)
    smoothed.certify(torch.zeros(1, 4), n=20)
    smoothed.predict(torch.zeros(1, 4), n=20)
    assert len(opened) == 3
    assert all(not first & second for first, second in combinations(opened.values(), 2))


@pytest.mark.statistical
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_follow_their_law(dtype: torch.dtype) -> None:
    for law, drawn in {"norm": stream().normal, "uniform": stream(1).uniform}.items():
        sample = drawn(100, (1_001,), dtype=dtype)
        assert sample.shape == (100, 1_001)
        # For correct numbers, one seed in ten thousand fails here.
        assert kstest(sample.flatten().double().numpy(), law).pvalue > 1e-4


def _bytes(one: Stream, n: int) -> np.ndarray:
    return one.words(n, 1_024).numpy().view(np.uint8).ravel()


@pytest.mark.scale
@pytest.mark.statistical
def test_nearby_streams_are_uniform_and_independent() -> None:
    """A hundred million bytes: streams of nearby seeds, indices and stages, side by side."""
    places = [(seed, index, stage) for seed in range(5) for index in range(4) for stage in Stage][:128]
    rows = [_bytes(stream(*place), 96) for place in places]  # 786,432 bytes each
    counts = np.sum([np.bincount(row, minlength=256) for row in rows], axis=0)
    total = counts.sum()
    assert total > 10**8
    statistic = ((counts - total / 256) ** 2 / (total / 256)).sum()
    # Each of the two bounds fails for one correct generator in a million.
    assert chi2.ppf(1e-6, 255) < statistic < chi2.ppf(1 - 1e-6, 255)
    for first, second in pairwise(rows):
        pairs = np.bincount(first[: 2**19].astype(int) % 16 * 16 + second[: 2**19] % 16, minlength=256)
        statistic = ((pairs - 2**11) ** 2 / 2**11).sum()
        assert statistic < chi2.ppf(1 - 1e-8, 255)
        a, b = (row.astype(np.float64) - 127.5 for row in (first, second))
        assert abs((a * b).mean()) / a.var() < 6 / np.sqrt(len(a))
