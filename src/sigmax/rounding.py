"""Rounding: radii are rounded down, never above what was proved; other numbers are rounded to nearest."""

import math
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal

# Radii come from ndtri and one product, each accurate to a few units in the last place (below 4 for scipy's ndtri, as
# measured). Sixteen units cover both and cost 4e-15 of the radius.
_SLACK = 16 * 2.0**-52


def round_down(value: float) -> float:
    """A float that does not exceed the real number that `value` approximates to a few units in the last place."""
    return value - abs(value) * _SLACK


def step_down(value: float) -> float:
    """The next float below, to cover the rounding of one addition or subtraction."""
    return math.nextafter(value, -math.inf)


def format_down(value: float, digits: int = 3) -> str:
    """`value` with this many decimals, rounded down: 0.9996 prints as 0.999."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR))


def format_whole(value: float) -> str:
    """`value` with all its digits, the fewest that read back as the same number: 0.29999999 is not shown as 0.3."""
    return repr(float(value)).removesuffix(".0")


def format_nearest(value: float, digits: int = 3) -> str:
    """`value` with this many decimals, halves rounded up, as papers print shares and means: 0.7665 is 0.767.

    Twelve significant digits are read, so that 7665 / 10000, 100 * 0.0055 and 0.3 - 0.2995 count as halves.
    """
    return str(Decimal(f"{value:.12g}").quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP))


def format_duration(seconds: float) -> str:
    """A duration such as 12.0 s, 1.5 min or 3.2 h; in days from two days on."""
    for unit, length, least in (("days", 86_400, 2), ("h", 3_600, 1), ("min", 60, 1)):
        if seconds >= least * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"
