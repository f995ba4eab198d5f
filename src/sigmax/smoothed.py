"""SmoothedClassifier: predict and certify, with one sigma or with its own sigma for each input."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from sigmax.bounds import top_class_p_value
from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.estimation import Claim, Counts, plan_draws
from sigmax.models.classifier import BaseClassifier, Outputs
from sigmax.noise import Gaussian, SmoothingDistribution
from sigmax.sampling import Progress, Stage, batch_rows, count_classes, default_batch_size, random_stream
from sigmax.sigma import FixedSigma, SearchTask, SigmaSearch

# Inputs selected and searched together: enough to fill batches with n0 = 100 samples each, few enough
# that little is lost when a run is interrupted.
_GROUP = 16


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

    Examples:
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
        self.search = sigma if isinstance(sigma, SigmaSearch) else FixedSigma(_number(sigma))
        self.batch_size = batch_size

    @property
    def fingerprint(self) -> str:
        """What a memory of this classifier's answers belongs to: model, preprocessing, norm, noise, and accelerator."""
        parts = f"{self.classifier.fingerprint} {self.noise.name} l{self.noise.norm}"
        place, accelerator = self.classifier.device.type, torch.accelerator.current_accelerator()
        if accelerator is not None and place == accelerator.type:
            parts += f" on {place}"  # which may round otherwise
        return hashlib.sha256(parts.encode()).hexdigest()

    def certify(
        self,
        x: Tensor,
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        seed: int = 0,
        tolerance: float = 0.0,
        runner_up: bool = False,
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
            tolerance: Stop an input where going on would gain less than this share of its radius; n is
                then the most it gets. 0: every input gets n samples.
            runner_up: Bound the strongest other class too, for larger radii from the same samples.
            indices: The index of each input in its data set; by default 0, 1, 2, … An input certified
                under the same index and seed gets the same noise in whatever batch it comes, and the
                same answer as far as the model gives a row the same bits in every place of a batch.
            on_progress: Called with the number of forward passes done since the last call.
        """
        budget = Budget(n0=n0, n=n, alpha=alpha, seed=seed, tolerance=tolerance, runner_up=runner_up)
        return list(self.certify_each(x, budget, indices=indices, on_progress=on_progress))

    def certify_at(
        self,
        x: Tensor,
        radii: Sequence[float],
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> list[PointCertificate]:
        """Certify only whether the radius is at least each of `radii`, with as many samples as that takes.

        The radius of a certificate is the largest of `radii` that was proved, and its n the samples that
        took; n here is the most an input gets. The other arguments are those of `certify`.
        """
        if not radii:
            raise InvalidInputError("expected one or more radii, got none")
        budget = Budget(n0=n0, n=n, alpha=alpha, seed=seed, radii=tuple(radii))
        return list(self.certify_each(x, budget, indices=indices, on_progress=on_progress))

    def certify_each(
        self,
        x: Tensor,
        budget: Budget,
        *,
        indices: Sequence[int] | None = None,
        truth: Sequence[int] | None = None,
        skip: int = 0,
        on_progress: Progress | None = None,
    ) -> Iterator[PointCertificate]:
        """Like `certify`, giving each certificate as soon as it is known, but for the first `skip`.

        Those take part in what they share with others, a search or a batch. The true classes, `truth`, only decide
        which inputs get `budget.n_wrong` samples.
        """
        x, indices = self._checked(x, indices)
        if truth is not None and len(truth) != len(x):
            raise InvalidInputError(f"expected one true class per input, got {len(truth)} for {len(x)} inputs")
        classes = None if truth is None else tuple(int(label) for label in truth)
        return self._certificates(_Job(x, indices, budget, on_progress, truth=classes), skip)

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
        x, indices = self._checked(x, indices)
        whole = _Job(x, indices, Budget(n0=n0, n=n, alpha=alpha, seed=seed), on_progress)
        answers: list[int | None] = []
        for job in whole.split(self._group(whole)):
            label = self._preselected(job)
            sigma = self._sigma(job, label)
            for i, row in enumerate(self._counts(job, sigma, Stage.PREDICTION, job.budget.n)):
                (top, runner_up), (leader, _) = (pair.tolist() for pair in row.topk(2))
                is_clear = top_class_p_value(top, runner_up) <= alpha
                is_kept = label is None or leader == int(label[i])
                answers.append(leader if is_clear and is_kept else None)
        return answers

    def _certificates(self, whole: "_Job", skip: int) -> Iterator[PointCertificate]:
        self.classifier.check_fixed()
        for job in whole.split(max(_GROUP, self._group(whole))):
            if skip >= len(job.x):
                skip -= len(job.x)
                continue
            label = self._preselected(job)
            sigma = self._sigma(job, label)
            if label is None:
                label = self._select(job, sigma)
            # An input that may stop early shares its batches with others, so that none is half empty.
            few = len(job.x) if job.budget.tolerance or job.budget.radii else self._group(job)
            parts = zip(job.split(few), torch.split(sigma, few), torch.split(label, few), strict=True)
            for part, levels, answers in parts:
                if skip >= len(part.x):
                    skip -= len(part.x)
                    continue
                # All of them again: the last bits of a network may depend on the place of an input in its batch.
                for found in self._estimate(part, levels, answers.tolist())[skip:]:
                    yield found
                    self.classifier.check_fixed()  # between two certificates a caller may go on training
                skip = 0

    def _estimate(self, job: "_Job", sigma: Tensor, labels: list[int]) -> list[PointCertificate]:
        """Sample and look in turns until every input has its certificate."""
        # Fresh streams: reusing the samples of search or selection would void the bound.
        streams = [self._stream(job.budget.seed, index, Stage.ESTIMATION) for index in job.indices]
        claims = [
            Claim(label=label, sigma=level, noise=self.noise, alpha=job.budget.alpha)
            for label, level in zip(labels, sigma.tolist(), strict=True)
        ]
        truth = job.truth or (None,) * len(claims)
        estimates = [job.budget.estimate(claim, truth=label) for claim, label in zip(claims, truth, strict=True)]
        counts = torch.zeros(len(job.x), self.classifier.num_classes, dtype=torch.int64)
        drawn = [0] * len(job.x)
        due = [estimate.next_look(0) for estimate in estimates]
        found: dict[int, PointCertificate] = {}
        while len(found) < len(job.x):
            left = [i for i in range(len(job.x)) if i not in found]
            state = ([values[i] for i in left] for values in (drawn, due))
            rows = batch_rows(job.x[0].numel(), self._rows(job.x))
            plans = plan_draws([estimates[i] for i in left], *state, batch=rows)
            parts = [(i, more) for i, plan in zip(left, plans, strict=True) for more in plan]
            places = [i for i, _ in parts]
            news = count_classes(
                self.classifier,
                job.x[places],
                sigma[places],
                noise=self.noise,
                n=[more for _, more in parts],
                streams=[streams[i] for i in places],
                batch_size=self._rows(job.x),
                on_progress=job.on_progress,
            )
            for (i, more), new in zip(parts, news, strict=True):
                drawn[i] += more
                if i in found:
                    continue
                counts[i] += new
                if drawn[i] == due[i]:
                    answer = estimates[i].look(_seen(counts[i], labels[i]))
                    if answer is not None:
                        found[i] = answer
                    else:
                        due[i] = estimates[i].next_look(drawn[i])
            if job.on_progress is not None:
                job.on_progress(sum(job.budget.n - drawn[i] for i in left if i in found))  # what they did not need
        return [found[i] for i in range(len(job.x))]

    def _preselected(self, job: "_Job") -> Tensor | None:
        """The prediction under sigma0 where the search keeps to it; None where the class is free."""
        if not self.search.fixes_class:
            return None
        return self._select(job, job.x.new_full((len(job.x),), self.search.initial))

    def _select(self, job: "_Job", sigma: Tensor) -> Tensor:
        return self._counts(job, sigma, Stage.SELECTION, job.budget.n0).argmax(dim=1).to(job.x.device)

    def _sigma(self, job: "_Job", label: Tensor | None) -> Tensor:
        sigma = self.search.find(
            SearchTask(
                classifier=self.classifier,
                noise=self.noise,
                x=job.x,
                label=label,
                n=job.budget.n,
                alpha=job.budget.alpha,
                indices=job.indices,
                stream=partial(self._stream, job.budget.seed),
                batch_size=self._rows(job.x),
                on_progress=job.on_progress,
            )
        )
        if sigma.shape != (len(job.x),):
            raise InvalidInputError(
                f"expected one sigma per input from the search, got {tuple(sigma.shape)} for {len(job.x)} inputs"
            )
        sigma = sigma.to(job.x)  # as noise is scaled: a certificate must not speak of another sigma
        for index, level in zip(job.indices, sigma.tolist(), strict=True):
            if not 0.0 < level < float("inf"):
                raise InvalidInputError(
                    f"expected sigma > 0 for every input, got sigma[{index}]={level}; "
                    "lower the step size, set bounds, or use --search ascent"
                )
        return sigma

    def _counts(self, job: "_Job", sigma: Tensor, stage: Stage, n: int) -> Tensor:
        return count_classes(
            self.classifier,
            job.x,
            sigma,
            noise=self.noise,
            n=n,
            streams=[self._stream(job.budget.seed, index, stage) for index in job.indices],
            batch_size=self._rows(job.x),
            on_progress=job.on_progress,
        )

    def _stream(self, seed: int, index: int, stage: Stage) -> torch.Generator:
        return random_stream(seed, index, stage, self.classifier.device)

    def _rows(self, x: Tensor) -> int:
        return self.batch_size or default_batch_size(x[0].numel())

    def _group(self, job: "_Job") -> int:
        """Inputs to sample together so that padding the last batch costs at most a sixteenth."""
        if not len(job.x):
            return 1
        most = max(1, 2**22 // self.classifier.num_classes)  # bounds the table of counts
        return min(most, max(1, -(-16 * self._rows(job.x) // job.budget.n)))

    def _checked(self, x: Tensor, indices: Sequence[int] | None) -> tuple[Tensor, tuple[int, ...]]:
        self.classifier.check_fixed()
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InvalidInputError(
                f"expected a floating-point tensor (batch, …), got {got}; divide 8-bit images by 255"
            )
        if x.dtype not in (torch.float32, torch.float64):
            raise InvalidInputError(f"expected float32 or float64, in which noise is fine enough, got {x.dtype}")
        if x[:1].numel() == 0 and len(x):
            raise InvalidInputError(f"expected inputs with at least one number each, got shape {tuple(x.shape)}")
        indices = tuple(range(len(x))) if indices is None else tuple(int(index) for index in indices)
        if len(indices) != len(x):
            raise InvalidInputError(f"expected one index per input, got {len(indices)} for {len(x)} inputs")
        is_finite = torch.isfinite(x).flatten(1).all(dim=1)
        if not is_finite.all():
            first = indices[int((~is_finite).nonzero()[0])]
            raise InvalidInputError(f"expected finite inputs, got NaN or infinity in input {first}")
        return x.to(self.classifier.device), indices


def _number(sigma: float) -> float:
    try:
        return float(sigma)
    except (TypeError, ValueError, RuntimeError) as error:  # in whatever way a thing refuses to be a number
        raise InvalidInputError(f"expected a number or a search as sigma, got {sigma!r}") from error


def _seen(counts: Tensor, label: int) -> Counts:
    others = counts.clone()
    others[label] = 0
    return Counts(n=int(counts.sum()), hits=int(counts[label]), rival=int(others.max()))


@dataclass(frozen=True, slots=True)
class _Job:
    """Inputs to answer, with all that decides their noise."""

    x: Tensor  # inputs *dims
    indices: tuple[int, ...]
    budget: Budget
    on_progress: Progress | None
    truth: tuple[int, ...] | None = None  # where it is known

    def split(self, size: int) -> Iterator["_Job"]:
        """The same in parts of at most this many inputs."""
        for start in range(0, len(self.x), size):
            part = slice(start, start + size)
            truth = None if self.truth is None else self.truth[part]
            yield replace(self, x=self.x[part], indices=self.indices[part], truth=truth)
