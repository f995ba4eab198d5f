"""Requests made up from the OpenAPI description: nothing that a client sends is an error of the service."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sigmax.serve.service import Limits
from trial import Served, make_service, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = Limits(n=300, body_bytes=2**18, body_seconds=5.0)
    with serving(make_service(tmp_path_factory.mktemp("schema"), limits=limits)) as started:
        yield started


def check_operations(served: Served, examples: int) -> Counter[int]:
    """Send so many requests to each operation, as described and otherwise; count the statuses."""
    schema = schemathesis.openapi.from_url(f"{served.address}/openapi.json")
    statuses: Counter[int] = Counter()
    for result in schema.get_all_operations():
        operation: Any = result
        check_operation(operation.ok(), examples, statuses)
    return statuses


def check_operation(operation: Any, examples: int, statuses: Counter[int]) -> None:
    expected = {int(status) for status in operation.definition.raw["responses"]} | {404, 405}
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

    @settings(max_examples=examples, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=cases, is_known=st.booleans())
    def check(case: Any, is_known: bool) -> None:
        given = case.path_parameters or {}
        if is_known:  # else nearly all ask for another model
            given |= {name: value for name, value in (("name", "bright"), ("version", "1")) if name in given}
        response = case.call(timeout=60)
        statuses[response.status_code] += 1
        assert response.status_code in expected, (response.status_code, response.text)

    check()


def test_some_hundred_requests_meet_no_error_of_the_service(served: Served) -> None:
    statuses = check_operations(served, 25)
    assert {200, 400, 404} <= set(statuses)
    assert served.client.get("/v2/health/ready").status_code == 200


@pytest.mark.scale
def test_ten_thousand_requests_meet_no_error_of_the_service(served: Served) -> None:
    statuses = check_operations(served, 1_400)
    assert sum(statuses.values()) >= 10_000
    assert served.client.get("/v2/health/ready").status_code == 200
