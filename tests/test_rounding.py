from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmax.rounding import format_down, format_nearest, round_down, step_down

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
