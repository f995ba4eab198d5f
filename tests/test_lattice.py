"""Integer noise: exact probabilities, exact draws, and certificates that a network cannot break by reading low bits."""

from fractions import Fraction
from itertools import accumulate, pairwise

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2, norm
from torch import Tensor, nn

from oracles import AxisThreshold, HalfSpace
from sigmax import Gaussian, SmoothedClassifier, SmoothingDistribution, Uniform
from sigmax.bounds import clopper_pearson_lower
from sigmax.errors import InvalidInputError
from sigmax.lattice import MOST_SCALE, PIXEL_DEFECT, IntegerNoise, grid_slack, to_pixels
from sigmax.streams import Stage, random_stream
from toy import Wide

CPU = torch.device("cpu")


def exact_masses(noise: SmoothingDistribution, scale: float, cells: int) -> list[mpmath.mpf]:
    """P(Z = i) for i = 0 … cells - 1, with 40 digits."""
    with mpmath.workdps(40):
        s = mpmath.mpf(scale)
        if isinstance(noise, Uniform):
            ends = [(max(-s, mpmath.mpf(2 * i - 1) / 2), min(s, mpmath.mpf(2 * i + 1) / 2)) for i in range(cells)]
            return [max(mpmath.mpf(0), high - low) / (2 * s) for low, high in ends]
        tails = [mpmath.erfc(mpmath.mpf(2 * i - 1) / 2 / s / mpmath.sqrt(2)) / 2 for i in range(cells + 1)]
        return [a - b for a, b in pairwise(tails)]


@pytest.mark.parametrize("noise", [Gaussian(), Uniform()])
@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 7.77, 30.6, 63.75, 255.0, 511.9])
def test_masses_agree_with_mpmath(noise: SmoothingDistribution, scale: float) -> None:
    masses = noise.masses(scale)
    assert masses is not None
    half = masses[len(masses) // 2 :]
    np.testing.assert_array_equal(masses, masses[::-1])
    truth = exact_masses(noise, scale, len(half))
    errors = [abs(mpmath.mpf(float(mass)) - true) for mass, true in zip(half, truth, strict=True)]
    assert max(errors) < 1e-15
    drawn = IntegerNoise(masses, CPU)
    edges = [0, *[int(t) + 2**63 for t in drawn.thresholds.tolist()], 2**64]
    with mpmath.workdps(40):
        chance = {drawn.low + i: mpmath.mpf(b - a) / 2**64 for i, (a, b) in enumerate(pairwise(edges))}
        distance = sum(abs(chance.get(i, 0) - true) * (2 if i else 1) for i, true in enumerate(truth)) / 2
    assert distance < PIXEL_DEFECT / 4


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 70), st.sampled_from([0.1, 7.0, 255.0, 4e4])
)
def test_draws_do_not_depend_on_how_they_are_drawn(parts: list[int], size: int, scale: float) -> None:
    table = IntegerNoise(Gaussian().masses(scale), CPU)
    whole = table.draw(random_stream(0, 1, Stage.PILOT, CPU), sum(parts), size)
    stream = random_stream(0, 1, Stage.PILOT, CPU)
    assert torch.equal(torch.cat([table.draw(stream, n, size) for n in parts]), whole)


@pytest.mark.parametrize("scale", [7.0, 255.0, 4e4])
def test_the_table_of_first_bits_gives_what_all_bits_give(scale: float) -> None:
    table, n, size = IntegerNoise(Gaussian().masses(scale), CPU), 5, 1_000
    drawn = table.draw(random_stream(0, 1, Stage.PILOT, CPU), n, size)
    main = size // 4
    words = random_stream(0, 1, Stage.PILOT, CPU).words(n, main + size // 16 + 4).numpy()
    side = random_stream(0, 1, Stage.PILOT, CPU).skip(n).side(n).words(n, size).numpy()
    first = words.view(np.int16)[:, :size].astype(object)
    edges = np.array(table.thresholds.tolist(), dtype=object)
    for row in range(n):
        rank = 0
        for column in range(size):
            low, high = int(first[row, column]) << 48, (int(first[row, column]) << 48) + 2**48 - 1
            cells = [int(np.searchsorted(edges, bits, side="right")) + table.low for bits in (low, high)]
            if cells[0] != cells[1]:
                further = words[row, main + rank] if rank < size // 16 + 4 else side[row, rank]
                rank += 1
                cells = [int(np.searchsorted(edges, low + (int(further) >> 16 & 2**48 - 1), side="right")) + table.low]
            assert int(drawn[row, column]) == cells[0]


def chi_square(noise: SmoothingDistribution, scale: float, samples: int) -> float:
    """The p-value of so many draws of 10,000 integers against the exact masses."""
    masses = noise.masses(scale)
    assert masses is not None
    table, stream = IntegerNoise(masses, CPU), random_stream(0, 0, Stage.PILOT, CPU)
    middle = len(masses) // 2
    counts = np.zeros(len(masses))
    for _ in range(samples // 100):
        drawn = table.draw(stream, 100, 10_000).numpy().ravel()
        counts += np.bincount(drawn + middle, minlength=len(masses))
    expected = masses * counts.sum()
    often = expected > 20
    seen, due = np.append(counts[often], counts[~often].sum()), np.append(expected[often], expected[~often].sum())
    keep = due > 0
    return float(chi2.sf(((seen[keep] - due[keep]) ** 2 / due[keep]).sum(), keep.sum() - 1))


@pytest.mark.statistical
@pytest.mark.parametrize(("noise", "scale"), [(Gaussian(), 63.75), (Gaussian(), 2.5), (Uniform(), 63.75)])
def test_draws_follow_the_masses(noise: SmoothingDistribution, scale: float) -> None:
    assert chi_square(noise, scale, 300) > 1e-4  # one seed in ten thousand fails


@pytest.mark.scale
@pytest.mark.statistical
@pytest.mark.parametrize(("noise", "scale"), [(Gaussian(), 63.75), (Gaussian(), 255.0), (Uniform(), 127.5)])
def test_a_hundred_million_draws_follow_the_masses(noise: SmoothingDistribution, scale: float) -> None:
    assert chi_square(noise, scale, 10_000) > 1e-4


@pytest.mark.parametrize("noise", [Gaussian(), Uniform()])
def test_the_widest_noise_keeps_its_bound(noise: SmoothingDistribution) -> None:
    """Rounding of all masses to 64 bits, exactly; and the masses themselves at some places."""
    masses = noise.masses(MOST_SCALE)
    assert masses is not None
    drawn, middle = IntegerNoise(masses, CPU), len(masses) // 2
    edges = [0, *[t + 2**63 for t in drawn.thresholds.tolist()], 2**64]
    weights = {drawn.low + i: b - a for i, (a, b) in enumerate(pairwise(edges))}
    gaps = [abs(weights.get(i - middle, 0) - Fraction(mass) * 2**64) for i, mass in enumerate(masses.tolist())]
    assert sum(gaps) / 2**65 < PIXEL_DEFECT / 4
    half, truth = masses[middle:], exact_masses(noise, MOST_SCALE, 40)
    assert all(abs(mass / true - 1) < 2.0**-50 for mass, true in zip(half[:40].tolist(), truth, strict=True))


def test_noise_far_below_a_step_of_the_grid_moves_nothing() -> None:
    for scale in (0.05, 1e-3, 1e-300):
        noise = IntegerNoise(Gaussian().masses(scale), CPU)
        assert not noise.draw(random_stream(0, 0, Stage.PILOT, CPU), 10, 100).any()
    smoothed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=1e-9, levels=255)
    (point,) = smoothed.certify(torch.full((1, 4), 7 / 255), n=100)
    assert 0 < point.radius < 1 / 255  # within which there is no other input


def test_noise_of_too_many_steps_is_refused() -> None:
    smoothed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=MOST_SCALE / 100, levels=255)
    with pytest.raises(InvalidInputError, match="lower sigma"):
        smoothed.certify(torch.zeros(1, 4), n=100)


@pytest.mark.parametrize("noise", [Gaussian(), Uniform()])
@pytest.mark.parametrize("scale", [0.3, 0.5, 0.75, 1.0, 2.5, 7.77, 30.6])
def test_no_classifier_of_one_pixel_breaks_a_certificate(noise: SmoothingDistribution, scale: float) -> None:
    """The worst classifiers of the Neyman-Pearson lemma, for every shift: also where the scale is no whole number.

    They answer class 1 on the values that are likelier at 0 than at the shift, most of all those that only 0 gives. If
    class 1 has probability p at 0 and at most 1/2 at the shift, then the shift must not be inside the radius of p.
    """
    masses = noise.masses(scale)
    assert masses is not None
    middle = len(masses) // 2
    for shift in range(1, 2 * middle + 2):
        here, there = (np.concatenate([np.zeros(zeros), masses]) for zeros in (0, shift))
        here = np.concatenate([here, np.zeros(shift)])
        order = np.argsort(np.divide(there, here, out=np.full_like(there, np.inf), where=here > 0), kind="stable")
        for p, q in zip(accumulate(here[order].tolist()), accumulate(there[order].tolist()), strict=True):
            if 0.5 < p < 1 - 1e-12 and q <= 0.5:
                assert noise.radius(p, sigma=scale) <= shift + 1e-9


@given(
    st.lists(st.tuples(st.integers(-600, 600), st.integers(-600, 600)), min_size=1, max_size=20),
    st.sampled_from([16, 255, 1_023]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_distance_on_the_grid_looks_shorter_by_at_most_the_slack(
    pairs: list[tuple[int, int]], levels: int, dtype: torch.dtype
) -> None:
    x, other = (torch.tensor(column, dtype=dtype) / levels for column in zip(*pairs, strict=True))
    slack = Fraction(grid_slack(x, levels))
    seen = [abs(Fraction(a) - Fraction(b)) for a, b in zip(x.tolist(), other.tolist(), strict=True)]
    true = [Fraction(abs(a - b), levels) for a, b in pairs]
    assert sum(seen) >= (1 - slack) * sum(true)
    assert sum(d * d for d in seen) >= (1 - slack) ** 2 * sum(d * d for d in true)


def test_an_exact_radius_holds_in_the_distances_of_floats() -> None:
    """Some neighbouring pixels are nearer in float32 than 1/255. An input on the border must not look inside."""
    near = [k for k in range(1, 256) if Fraction(_pixel(k)) - Fraction(_pixel(k - 1)) < Fraction(1, 255)]
    assert near
    x = torch.tensor([[_pixel(near[-1])] * 4])
    smoothed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=0.5, levels=255)
    for point in (smoothed.certify(x, n=1_000)[0], smoothed.certify_at(x, [0.1], n=1_000)[0]):
        proved = Gaussian().radius(point.p_lower, sigma=point.sigma)
        assert 0 < point.radius <= proved * (1 - grid_slack(x, 255))
        assert point.radius in (0.1, pytest.approx(proved, rel=1e-4))


def _pixel(k: int) -> float:
    return float(np.float32(k) / np.float32(255))


def test_inputs_off_the_grid_are_refused() -> None:
    assert to_pixels(torch.tensor([0.0, 1.0, 17 / 255, -3 / 255]), 255).tolist() == [0, 255, 17, -3]
    for x in (0.5, 1e-9, float(2**14)):
        with pytest.raises(InvalidInputError, match="1/255"):
            to_pixels(torch.tensor([x, 0.0]), 255)


def test_noise_without_masses_is_refused() -> None:
    smoothed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, noise=Wide(), levels=255)
    with pytest.raises(InvalidInputError, match="masses"):
        smoothed.certify(torch.zeros(1, 4), n=100)


ALPHA, REPEATS = 0.01, 2_000


@pytest.mark.statistical
@pytest.mark.parametrize("distance", [0.1, 0.4])
def test_half_spaces_in_exact_mode(distance: float) -> None:
    """A half-space seen through rounded noise: the radius is its distance, up to what n samples can prove."""
    dimensions, sigma, levels, n = 48, 0.25, 255, 1_000
    plane = HalfSpace(dimensions).eval()
    x = (plane.at_distance(torch.tensor([distance])) * levels).round() / levels
    truth = float(x[0].double() @ plane.normal.double())
    # Rounding adds noise of its own, of deviation 1 / (levels sqrt(12)) along the normal.
    wide = np.hypot(sigma, 1 / (levels * np.sqrt(12)))
    smoothed = SmoothedClassifier(plane, num_classes=2, sigma=sigma, levels=levels)
    points = smoothed.certify(x.expand(REPEATS, -1), n0=500, n=n, alpha=ALPHA)
    assert all(point.is_exact for point in points)
    # Beyond the plane there is an input on the grid of the other class within a pixel or so.
    misses = sum(point.radius > truth + 1 / levels for point in points)
    assert misses <= binom.ppf(1 - 1e-6, REPEATS, ALPHA)
    p = norm.cdf(truth / wide)
    best = np.mean([_radius(Gaussian(), int(k), n, sigma) for k in np.random.default_rng(0).binomial(n, p, REPEATS)])
    assert np.mean([point.radius for point in points]) > 0.97 * best


@pytest.mark.statistical
@pytest.mark.parametrize("pixel", [10, 40])
def test_axis_thresholds_in_exact_mode(pixel: int) -> None:
    """Class 1 where the first pixel is above 0: its exact probability under rounded uniform noise is known."""
    levels, sigma, n = 255, 0.25, 1_000
    masses = Uniform().masses(levels * sigma)
    x = torch.zeros(1, 4)
    x[0, 0] = pixel / levels
    smoothed = SmoothedClassifier(AxisThreshold().eval(), num_classes=2, noise=Uniform(), sigma=sigma, levels=levels)
    points = smoothed.certify(x.expand(REPEATS, -1), n0=500, n=n, alpha=ALPHA)
    p = masses[len(masses) // 2 - pixel + 1 :].sum()
    misses = sum(point.p_lower > p for point in points)
    assert misses <= binom.ppf(1 - 1e-6, REPEATS, ALPHA)
    # At 0 the answer is class 0, so a radius above the distance is false.
    assert sum(point.radius > pixel / levels for point in points) <= binom.ppf(1 - 1e-6, REPEATS, ALPHA)
    counts = np.random.default_rng(0).binomial(n, p, REPEATS)
    best = np.mean([_radius(Uniform(), int(k), n, sigma) for k in counts])
    assert np.mean([point.radius for point in points]) > 0.97 * best


def _radius(noise: SmoothingDistribution, k: int, n: int, sigma: float) -> float:
    p = clopper_pearson_lower(k, n, alpha=ALPHA)
    return noise.radius(p, sigma=sigma) if p > 0.5 else 0.0


class LowBits(nn.Module):
    """Class 1 where a pixel below 1/16 has bits finer than 2**-27, else class 0.

    A sum of float32 numbers has such bits only if both are small. So under noise in floating point the network knows
    whether x is 0 or 32/255.
    """

    def forward(self, x: Tensor) -> Tensor:
        scaled = x.flatten(1) * 2.0**27
        is_fine = (x.flatten(1).abs() < 1 / 16) & (scaled != scaled.round())
        has_fine = is_fine.any(dim=1).float()
        return torch.stack([1 - has_fine, has_fine], dim=1)


def test_a_network_that_reads_low_bits_breaks_float_certificates_and_no_exact_one() -> None:
    dimensions, sigma, levels, tries = 256, 1.0, 255, 10_000
    x = torch.zeros(1, dimensions)
    other = torch.full_like(x, 32 / levels)
    distance = float((other - x).norm())
    by_float = SmoothedClassifier(LowBits().eval(), num_classes=2, sigma=sigma)
    here, there = by_float.certify(torch.cat([x, other]), n=5_000)
    print(f"float: class {here.label} within {here.radius:.3f}, but class {there.label} at {distance:.3f}")
    assert (here.label, there.label) == (1, 0)
    assert distance < here.radius

    exact = SmoothedClassifier(LowBits().eval(), num_classes=2, sigma=sigma, levels=levels)
    points = exact.certify(torch.cat([x, other]).repeat(tries // 2, 1), n0=5, n=30)
    masses = Gaussian().masses(sigma * levels)
    middle = len(masses) // 2
    # No k / 255 with 0 < |k| < 16 is a multiple of 2**-27, so the probability of class 1 is known.
    seen = np.array([0 < abs(k) < levels / 16 for k in range(-middle, middle + 1)])
    for point, pixel in zip(points, [0, 32] * (tries // 2), strict=True):
        p = 1 - (1 - masses[np.roll(seen, -pixel)].sum()) ** dimensions
        assert point.label in (1, None)
        assert point.p_lower < p
    print(f"exact: 0 of {tries:,} certificates are false")
    assert any(point.label == 1 for point in points)
