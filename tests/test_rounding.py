from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmax.rounding import format_down, format_duration, format_nearest, round_down, step_down

positive = st.floats(1e-12, 1e6)


@given(positive)
def test_rounded_values_never_claim_more(value: float) -> None:
    assert Decimal(format_down(value)) <= Decimal(value)
    assert Decimal(value) - Decimal(format_down(value)) < Decimal("0.001")
    assert value * (1 - 1e-14) < round_down(value) < value
    assert step_down(value) < value


def test_a_radius_just_below_one_does_not_print_as_one() -> None:
    assert format_down(0.9996) == "0.999"


@pytest.mark.parametrize(
    ("value", "text"), [(0.7665, "0.767"), (0.0005, "0.001"), (0.3333333, "0.333"), (0.0, "0.000")]
)
def test_shares_round_halves_up(value: float, text: str) -> None:
    assert format_nearest(value) == text


def test_percentages_and_differences_of_shares_round_halves_up() -> None:
    for count in range(5, 10_000, 10):
        assert format_nearest(100 * (count / 10_000), 1) == f"{(count + 5) // 10 / 10:.1f}"
        assert format_nearest((count + 1_000) / 10_000 - 1_000 / 10_000) == f"{(count + 5) // 10 / 1_000:.3f}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2 s"), (90, "1.5 min"), (7_200, "2.0 h"), (170_000, "47.2 h"), (345_600, "4.0 days")],
)
def test_durations_are_in_a_unit_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
