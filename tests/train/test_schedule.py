from typing import get_args

import numpy as np
import pytest

from sigmax.train.schedule import Schedule, learning_rate


def rates(schedule: Schedule, steps: int = 200, drop_every: int = 50) -> list[float]:
    return [learning_rate(schedule, peak=0.4, step=i, steps=steps, drop_every=drop_every) for i in range(steps)]


def test_step_falls_to_a_tenth_at_each_drop() -> None:
    expected = [0.4] * 50 + [0.04] * 50 + [0.004] * 50 + [0.0004] * 50
    np.testing.assert_allclose(rates("step"), expected)


def test_cosine_falls_from_the_peak_to_almost_nothing() -> None:
    found = rates("cosine")
    assert found[0] == 0.4
    assert found[100] == pytest.approx(0.2)
    assert found[-1] < 0.001
    assert all(np.diff(found) < 0)


def test_one_cycle_rises_for_a_quarter_and_then_falls() -> None:
    found = rates("one-cycle")
    assert found[0] == pytest.approx(0.04)
    assert int(np.argmax(found)) == 50
    assert max(found) == pytest.approx(0.4)
    assert all(np.diff(found[:51]) > 0)
    assert all(np.diff(found[50:]) < 0)
    assert 0 < found[-1] < 0.001


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_the_shortest_training_has_a_learning_rate(schedule: Schedule) -> None:
    assert rates(schedule, steps=1, drop_every=1)[0] > 0
