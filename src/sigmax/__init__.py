"""sigmax: certified robustness by randomized smoothing with a noise level chosen for each input."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigmax.certificate import PointCertificate, SettledCertificate
    from sigmax.errors import SigmaxError
    from sigmax.memory import CertificateMemory
    from sigmax.noise import Gaussian, SmoothingDistribution, Uniform
    from sigmax.sigma import AscentSearch, FixedSigma, GridSearch, HalvingSearch, SearchTask, SigmaSearch
    from sigmax.smoothed import SmoothedClassifier

# Names are imported when first used: the command line must not wait for torch to print its help.
_HOME = {
    "AscentSearch": "sigmax.sigma",
    "CertificateMemory": "sigmax.memory",
    "FixedSigma": "sigmax.sigma",
    "Gaussian": "sigmax.noise",
    "GridSearch": "sigmax.sigma",
    "HalvingSearch": "sigmax.sigma",
    "PointCertificate": "sigmax.certificate",
    "SearchTask": "sigmax.sigma",
    "SettledCertificate": "sigmax.certificate",
    "SigmaSearch": "sigmax.sigma",
    "SigmaxError": "sigmax.errors",
    "SmoothedClassifier": "sigmax.smoothed",
    "SmoothingDistribution": "sigmax.noise",
    "Uniform": "sigmax.noise",
}

__version__ = "0.1.0"
__all__ = [  # noqa: RUF022 (the order in which a reader meets them)
    "SmoothedClassifier",
    "Gaussian",
    "Uniform",
    "SmoothingDistribution",
    "FixedSigma",
    "AscentSearch",
    "GridSearch",
    "HalvingSearch",
    "SigmaSearch",
    "SearchTask",
    "CertificateMemory",
    "PointCertificate",
    "SettledCertificate",
    "SigmaxError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sigmax' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
