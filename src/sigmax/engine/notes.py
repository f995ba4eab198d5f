"""What a run's configuration tells people, beside what decides its numbers."""

from sigmax import __version__
from sigmax.noise import SmoothingDistribution, Uniform
from sigmax.smoothed import SmoothedClassifier


def run_notes(
    smoothed: SmoothedClassifier, *, model: str, data: str, trained: str | None, trained_noise: str | None
) -> dict[str, str]:
    """Model, data, method, engine and version, for the configuration of a run.

    Args:
        smoothed: The classifier that is certified.
        model: What the user calls the model.
        data: What the user calls the data.
        trained: The method of the model's training; None: it is not known, and neither is the method.
        trained_noise: The name of the noise of that training; None: it is not known, and taken for that of now.
    """
    notes = {"model": model, "data": data, "sigmax": __version__}
    if (engine := smoothed.classifier.engine) is not None:
        notes["engine"] = engine
    if trained is not None:
        noise, is_per_input = smoothed.noise, smoothed.search.is_per_input
        notes["method"] = paper_method(
            trained, is_per_input=is_per_input, noise=noise, trained_noise=trained_noise or noise.name
        )
    return notes


def paper_method(trained: str, *, is_per_input: bool, noise: SmoothingDistribution, trained_noise: str) -> str:
    """Training and certification as the paper calls them together.

    A network trained with one sigma is cohen, and cohen-ds with a search; one trained with its own sigma for
    each example is cohen-ds2 with a search, and cohen-ds2-fixed without, which the paper does not have.
    Plain training under uniform noise is what it calls yang. Certified under other noise than it was trained with,
    which the paper never does, a network is cohen-l1 or yang-l2.
    """
    base, _, _ = trained.partition("-ds2")
    name = "yang" if trained_noise == Uniform.name and base == "cohen" else base
    if trained_noise != noise.name:
        name += f"-l{noise.norm}"
    if trained.endswith("-ds2"):
        return f"{name}-ds2" if is_per_input else f"{name}-ds2-fixed"
    return f"{name}-ds" if is_per_input else name
