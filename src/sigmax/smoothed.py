"""SmoothedClassifier: predict and certify, with one sigma or with its own sigma for each input."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from sigmax.bounds import check_alpha, clopper_pearson_lower, top_class_p_value
from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.models.classifier import BaseClassifier, Outputs
from sigmax.noise import Gaussian, SmoothingDistribution
from sigmax.sampling import Progress, Stage, count_classes, default_batch_size, random_stream
from sigmax.sigma import FixedSigma, SearchTask, SigmaSearch

# Inputs selected and searched together: enough to fill batches with n0 = 100 samples each, few enough
# that little is lost when a run is interrupted.
_GROUP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    """How an answer is sampled: selection with n0, estimation with n, at level alpha."""

    n0: int
    n: int
    alpha: float
    seed: int
    on_progress: Progress | None


@final
class SmoothedClassifier:
    """The classifier that answers what `model` answers most often under noise.

    Args:
        model: A `torch.nn.Module` in eval mode, or any callable from (batch, …) to (batch, classes).
        num_classes: How many classes it tells apart.
        noise: The smoothing distribution; it decides the norm of the certified balls.
        sigma: One number for all inputs, or a search that chooses sigma for each.
        outputs: Whether the model returns "logits" or "probabilities".
        batch_size: Noisy samples per forward pass; by default chosen by the size of the input.
        identity: Names a model that is no `torch.nn.Module`; see `BaseClassifier`.

    Example:
        >>> g = SmoothedClassifier(model, num_classes=10, sigma=0.25)
        >>> g.certify(x, n=10_000)[0]
        PointCertificate(label=3, radius=0.41…, sigma=0.25, …)
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        *,
        num_classes: int,
        noise: SmoothingDistribution | None = None,
        sigma: SigmaSearch | float = 0.25,
        outputs: Outputs = "logits",
        batch_size: int | None = None,
        identity: str | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise InvalidInputError(f"expected batch_size >= 1, got batch_size={batch_size}")
        self.classifier = BaseClassifier(model, num_classes=num_classes, outputs=outputs, identity=identity)
        self.noise = noise or Gaussian()
        self.search = sigma if isinstance(sigma, SigmaSearch) else FixedSigma(sigma)
        self.batch_size = batch_size

    @property
    def fingerprint(self) -> str:
        """What a memory of this classifier's answers belongs to: model, preprocessing, norm and noise."""
        parts = f"{self.classifier.fingerprint} {self.noise.name} l{self.noise.norm}"
        return hashlib.sha256(parts.encode()).hexdigest()

    def certify(
        self,
        x: Tensor,
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> list[PointCertificate]:
        """Certify each input: its class, and a radius within which no perturbation changes it.

        Each certificate is wrong with probability at most alpha, over the sampling. Sigma is held fixed:
        where it differs between inputs, give the certificates to a `CertificateMemory`.

        Args:
            x: Inputs (batch, …) in the model's own input space.
            n0: Samples that select the class.
            n: Samples that estimate its probability.
            alpha: Failure probability.
            seed: Seeds all noise, together with the index of an input and the stage.
            indices: The index of each input in its data set; by default 0, 1, 2, … An input certified
                under the same index and seed gets the same answer in whatever batch it comes.
            on_progress: Called with the number of forward passes done since the last call.
        """
        return list(self.certify_each(x, n0=n0, n=n, alpha=alpha, seed=seed, indices=indices, on_progress=on_progress))

    def certify_each(
        self,
        x: Tensor,
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> Iterator[PointCertificate]:
        """Like `certify`, giving each certificate as soon as it is known."""
        budget = _Budget(n0=n0, n=n, alpha=alpha, seed=seed, on_progress=on_progress)
        x, indices = self._checked(x, indices, budget)
        return self._certificates(x, indices, budget)

    def predict(
        self,
        x: Tensor,
        *,
        n0: int = 100,
        n: int = 1_000,
        alpha: float = 0.001,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> list[int | None]:
        """Predict the class of each input; None where the samples cannot tell at level alpha.

        The arguments are those of `certify`; n0 is used only by a search that fixes the class.
        """
        budget = _Budget(n0=n0, n=n, alpha=alpha, seed=seed, on_progress=on_progress)
        x, indices = self._checked(x, indices, budget)
        answers: list[int | None] = []
        for part in _slices(len(x), self._group(x, n)):
            label = self._preselected(x[part], indices[part], budget)
            sigma = self._sigma(x[part], indices[part], label, budget)
            counts = self._counts(x[part], indices[part], sigma, Stage.PREDICTION, n, budget)
            for i, row in enumerate(counts):
                (top, runner_up), (leader, _) = (t.tolist() for t in row.topk(2))
                is_clear = top_class_p_value(top, runner_up) <= alpha
                is_kept = label is None or leader == int(label[i])
                answers.append(leader if is_clear and is_kept else None)
        return answers

    def _certificates(self, x: Tensor, indices: tuple[int, ...], budget: _Budget) -> Iterator[PointCertificate]:
        for part in _slices(len(x), max(_GROUP, self._group(x, budget.n))):
            inputs, names = x[part], indices[part]
            label = self._preselected(inputs, names, budget)
            sigma = self._sigma(inputs, names, label, budget)
            if label is None:
                label = self._select(inputs, names, sigma, budget)
            for few in _slices(len(inputs), self._group(x, budget.n)):
                # Fresh stream: reusing the samples of search or selection would void the bound.
                counts = self._counts(inputs[few], names[few], sigma[few], Stage.ESTIMATION, budget.n, budget)
                for row, answer, level in zip(counts, label[few], sigma[few], strict=True):
                    yield self._certificate(int(answer), int(row[int(answer)]), float(level), budget)

    def _certificate(self, label: int, hits: int, sigma: float, budget: _Budget) -> PointCertificate:
        p_lower = clopper_pearson_lower(hits, budget.n, alpha=budget.alpha)
        radius = self.noise.radius(p_lower, sigma=sigma) if p_lower > 0.5 else 0.0
        return PointCertificate(
            label=label if p_lower > 0.5 else None,
            radius=max(radius, 0.0),
            sigma=sigma,
            p_lower=p_lower,
            n=budget.n,
            alpha=budget.alpha,
            norm=self.noise.norm,
        )

    def _preselected(self, x: Tensor, indices: tuple[int, ...], budget: _Budget) -> Tensor | None:
        """The prediction under sigma0 where the search keeps to it; None where the class is free."""
        if not self.search.fixes_class:
            return None
        sigma0 = torch.full((len(x),), self.search.initial, dtype=x.dtype, device=x.device)
        return self._select(x, indices, sigma0, budget)

    def _select(self, x: Tensor, indices: tuple[int, ...], sigma: Tensor, budget: _Budget) -> Tensor:
        return self._counts(x, indices, sigma, Stage.SELECTION, budget.n0, budget).argmax(dim=1).to(x.device)

    def _sigma(self, x: Tensor, indices: tuple[int, ...], label: Tensor | None, budget: _Budget) -> Tensor:
        task = SearchTask(
            classifier=self.classifier,
            noise=self.noise,
            x=x,
            label=label,
            n=budget.n,
            alpha=budget.alpha,
            indices=indices,
            stream=partial(self._stream, budget.seed),
            batch_size=self._rows(x),
            on_progress=budget.on_progress,
        )
        sigma = self.search.find(task)
        for index, level in zip(indices, sigma.tolist(), strict=True):
            if not 0.0 < level < float("inf"):
                raise InvalidInputError(
                    f"expected sigma > 0 for every input, got sigma[{index}]={level}; lower step_size or set bounds"
                )
        return sigma

    def _counts(
        self,
        x: Tensor,
        indices: tuple[int, ...],
        sigma: Tensor,
        stage: Stage,
        n: int,
        budget: _Budget,
    ) -> Tensor:
        return count_classes(
            self.classifier,
            x,
            sigma,
            noise=self.noise,
            n=n,
            streams=[self._stream(budget.seed, index, stage) for index in indices],
            batch_size=self._rows(x),
            on_progress=budget.on_progress,
        )

    def _stream(self, seed: int, index: int, stage: Stage) -> torch.Generator:
        return random_stream(seed, index, stage, self.classifier.device)

    def _rows(self, x: Tensor) -> int:
        return self.batch_size or default_batch_size(x[0].numel())

    def _group(self, x: Tensor, n: int) -> int:
        """Inputs to sample together so that padding the last batch costs at most a sixteenth."""
        return max(1, -(-16 * self._rows(x) // n))

    def _checked(self, x: Tensor, indices: Sequence[int] | None, budget: _Budget) -> tuple[Tensor, tuple[int, ...]]:
        self.classifier.check_fixed()
        check_alpha(budget.alpha)
        if budget.n < 1 or budget.n0 < 1:
            raise InvalidInputError(f"expected n >= 1 and n0 >= 1, got n={budget.n}, n0={budget.n0}")
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InvalidInputError(
                f"expected a floating-point tensor (batch, …), got {got}; divide 8-bit images by 255"
            )
        indices = tuple(range(len(x))) if indices is None else tuple(indices)
        if len(indices) != len(x):
            raise InvalidInputError(f"expected one index per input, got {len(indices)} for {len(x)} inputs")
        is_finite = torch.isfinite(x).flatten(1).all(dim=1)
        if not is_finite.all():
            first = indices[int((~is_finite).nonzero()[0])]
            raise InvalidInputError(f"expected finite inputs, got NaN or infinity in input {first}")
        return x.to(self.classifier.device), indices


def _slices(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
