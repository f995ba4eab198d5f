"""A network that says of itself how it was trained, as the arguments of a `SmoothedClassifier`."""

import math
from typing import Any

from sigmax.errors import InvalidInputError
from sigmax.models.reference import ModelReference
from sigmax.noise import Gaussian, find_noise
from sigmax.sampling import default_batch_size
from sigmax.search import FixedSigma, SigmaSearch, search_for


def pretrained(
    model: str | ModelReference, sigma: SigmaSearch | float | str | None, batch_size: int | None
) -> dict[str, Any]:
    """Load a network with a card; see `SmoothedClassifier.from_pretrained`."""
    reference = ModelReference(name=model) if isinstance(model, str) else model
    loaded = reference.load()
    card = loaded.card
    if card is None or card.input_shape is None:
        raise InvalidInputError(
            f"expected a network with a card, got {reference.name}; use SmoothedClassifier(model, …)"
        )
    if sigma is None or isinstance(sigma, str):
        sigma = search_for(card.sigma, card.sigma_range, sigma or FixedSigma.name)
    plain = reference.classifier(loaded)
    rows = batch_size or default_batch_size(math.prod(card.input_shape))
    return {
        "model": reference.accelerated(plain.model, batch_shape=(rows, *card.input_shape)),
        "num_classes": plain.num_classes,
        "noise": find_noise(card.noise or Gaussian.name),
        "sigma": sigma,
        "outputs": plain.outputs,
        "identity": plain.identity,
    }
