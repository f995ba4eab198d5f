import pytest

from sigmax.engine import paper_method
from sigmax.noise import Gaussian, Uniform


@pytest.mark.parametrize(
    ("trained", "is_per_input", "noises", "method"),
    [
        ("cohen", False, "l2 l2", "cohen"),
        ("cohen", True, "l2 l2", "cohen-ds"),
        ("cohen-ds2", True, "l2 l2", "cohen-ds2"),
        ("cohen-ds2", False, "l2 l2", "cohen-ds2-fixed"),
        ("smoothadv", True, "l2 l2", "smoothadv-ds"),
        ("macer-ds2", True, "l2 l2", "macer-ds2"),
        ("cohen", False, "l1 l1", "yang"),
        ("cohen", True, "l1 l1", "yang-ds"),
        ("cohen-ds2", True, "l1 l1", "yang-ds2"),
        ("smoothadv", True, "l1 l1", "smoothadv-ds"),
        ("cohen", False, "l2 l1", "cohen-l1"),  # not the paper's: it certifies under the noise of the training
        ("cohen-ds2", True, "l1 l2", "yang-l2-ds2"),
    ],
)
def test_methods_are_called_as_in_the_paper(trained: str, is_per_input: bool, noises: str, method: str) -> None:
    trained_noise, noise = (Uniform() if norm == "l1" else Gaussian() for norm in noises.split())
    found = paper_method(trained, is_per_input=is_per_input, noise=noise, trained_noise=trained_noise.name)
    assert found == method
