import pytest

from sigmax.engine import paper_method


@pytest.mark.parametrize(
    ("trained", "is_per_input", "is_uniform", "method"),
    [
        ("cohen", False, False, "cohen"),
        ("cohen", True, False, "cohen-ds"),
        ("cohen-ds2", True, False, "cohen-ds2"),
        ("cohen-ds2", False, False, "cohen-ds2-fixed"),
        ("smoothadv", True, False, "smoothadv-ds"),
        ("macer-ds2", True, False, "macer-ds2"),
        ("cohen", False, True, "yang"),
        ("cohen", True, True, "yang-ds"),
        ("cohen-ds2", True, True, "yang-ds2"),
        ("smoothadv", True, True, "smoothadv-ds"),
    ],
)
def test_methods_are_called_as_in_the_paper(trained: str, is_per_input: bool, is_uniform: bool, method: str) -> None:
    assert paper_method(trained, is_per_input=is_per_input, is_uniform=is_uniform) == method
