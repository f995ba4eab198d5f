"""sigmax: certified robustness by randomized smoothing with per-input noise levels."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sigmax.certificate import PointCertificate, SettledCertificate
    from sigmax.errors import SigmaxError
    from sigmax.experts import Experts
    from sigmax.memory import CertificateMemory, FrozenMemory
    from sigmax.models.ensemble import Ensemble
    from sigmax.noise import Gaussian, SmoothingDistribution, Uniform
    from sigmax.results import Certificates
    from sigmax.search import AscentSearch, Choice, FixedSigma, GridSearch, HalvingSearch, SearchTask, SigmaSearch
    from sigmax.smoothed import SmoothedClassifier

# Names are imported when first used: the command line must not wait for torch to print its help.
_HOME = {
    "AscentSearch": "sigmax.search",
    "CertificateMemory": "sigmax.memory",
    "Certificates": "sigmax.results",
    "Choice": "sigmax.search",
    "Ensemble": "sigmax.models.ensemble",
    "Experts": "sigmax.experts",
    "FixedSigma": "sigmax.search",
    "FrozenMemory": "sigmax.memory",
    "Gaussian": "sigmax.noise",
    "GridSearch": "sigmax.search",
    "HalvingSearch": "sigmax.search",
    "PointCertificate": "sigmax.certificate",
    "SearchTask": "sigmax.search",
    "SettledCertificate": "sigmax.certificate",
    "SigmaSearch": "sigmax.search",
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
    "Experts",
    "Ensemble",
    "SigmaSearch",
    "SearchTask",
    "Choice",
    "CertificateMemory",
    "Certificates",
    "FrozenMemory",
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
