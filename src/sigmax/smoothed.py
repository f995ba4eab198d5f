"""SmoothedClassifier: predict and certify, with one sigma for all or with per-input sigma."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, final

from torch import Tensor

from sigmax.bounds import leads
from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.certifier import Certifier
from sigmax.errors import InvalidInputError
from sigmax.experts import Expert, Experts
from sigmax.inputs import Inputs, count_inputs, progress_bar
from sigmax.jobs import Decision, Job
from sigmax.models.classifier import BaseClassifier
from sigmax.models.denoisers import Denoiser, with_denoiser
from sigmax.models.outputs import Outputs
from sigmax.models.reference import ModelReference
from sigmax.named import name_of
from sigmax.noise import Gaussian, SmoothingDistribution
from sigmax.pretrained import pretrained
from sigmax.results import Certificates, gather
from sigmax.sampler import Sampler
from sigmax.sampling import Progress
from sigmax.search import Choice, FixedSigma, SearchTask, SigmaSearch
from sigmax.search.base import BoundedSearch
from sigmax.selection import select_class
from sigmax.streams import Stage

# Inputs selected and searched together: enough to fill batches with n0 = 100 samples each, few enough
# that little is lost when a run is interrupted.
_GROUP = 16


@final
class SmoothedClassifier(Certifier):
    """The classifier that answers what `model` answers most often under noise.

    Args:
        model: A `torch.nn.Module` in eval mode, or any callable from (batch, …) to (batch, classes); or `Experts`,
            several of these, among which the search chooses for each input.
        num_classes: Number of classes.
        noise: The smoothing distribution; it decides the norm of the certified balls.
        sigma: One number for all inputs, or a search that chooses sigma for each.
        outputs: Whether the model returns "logits" or "probabilities".
        levels: Inputs are multiples of 1 / levels, such as 255 for 8-bit images. Noise is then exact: certificates hold
            for every input on this grid, and rounding cannot break them. None: noise in floating point.
        batch_size: Noisy samples per forward pass; by default it depends on the size of an input.
        identity: A text that identifies a model that is not a `torch.nn.Module`; see `BaseClassifier`.
        denoiser: A callable (noisy, sigma) -> clean before the model, so that a model that never saw noise can be
            certified. sigma is one number per row, in the units of the inputs.
        stages: Replaces stages of the random streams by others, so that two classifiers of the same inputs draw
            different noise.

    Examples:
        >>> g = SmoothedClassifier(model, num_classes=10, sigma=0.25)
        >>> g.certify(x, n=10_000)[0]
        <PointCertificate label=3, radius=0.4137, sigma=0.25>
    """

    def __init__(
        self,
        model: Callable[..., Tensor] | Experts,
        *,
        num_classes: int,
        noise: SmoothingDistribution | None = None,
        sigma: SigmaSearch | float = 0.25,
        outputs: Outputs = "logits",
        levels: int | None = None,
        batch_size: int | None = None,
        identity: str | None = None,
        stages: Mapping[Stage, Stage] | None = None,
        denoiser: Denoiser | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise InvalidInputError(f"expected batch_size >= 1, got batch_size={batch_size}")
        if levels is not None and not 1 <= levels < 2**13:
            raise InvalidInputError(f"expected 1 <= levels < {2**13}, got levels={levels}; 255 for 8-bit images")
        model = model if denoiser is None else with_denoiser(model, denoiser)
        self.search = sigma if isinstance(sigma, SigmaSearch) else FixedSigma(_number(sigma))
        family = model if isinstance(model, Experts) else Experts([model])
        self.class_rule = family.class_rule
        self.sampler = Sampler(
            experts=family.resolve(
                num_classes=num_classes,
                outputs=outputs,
                identity=identity,
                sigma=self.search.initial,
                bounds=self.search.limits if isinstance(self.search, BoundedSearch) else None,
            ),
            noise=noise or Gaussian(),
            levels=levels,
            batch_size=batch_size,
            stages=dict(stages or {}),
        )
        if len(self.experts) > 1 and not self.search.takes_experts:
            raise InvalidInputError(
                f"expected a search that chooses among several networks, got {name_of(type(self.search))}; "
                "use HalvingSearch (halving)"
            )

    def __repr__(self) -> str:
        model = getattr(self.classifier.model, "__name__", type(self.classifier.model).__name__)
        how = f"{name_of(type(self.noise))} noise, {name_of(type(self.search))} sigma, sigma0 = {self.search.initial:g}"
        return f"<SmoothedClassifier of {model}: {self.classifier.num_classes} classes, {how}>"

    @classmethod
    def from_pretrained(
        cls,
        model: str | ModelReference,
        *,
        sigma: SigmaSearch | float | str | None = None,
        levels: int | None = 255,
        batch_size: int | None = None,
    ) -> Self:
        """A network with a card, ready to certify: `zoo:NAME` (`sigmax models` lists them), a checkpoint or a folder.

        The noise is that of the training. So are sigma, if none is given, and the bounds of a search that is given by
        its name, such as "halving".
        """
        return cls(**pretrained(model, sigma, batch_size), levels=levels, batch_size=batch_size)

    @property
    def experts(self) -> tuple[Expert, ...]:
        """The networks, each with its noise levels; usually one."""
        return self.sampler.experts

    @property
    def classifier(self) -> BaseClassifier:
        """The base classifier; of several, the first."""
        return self.sampler.classifier

    @property
    def noise(self) -> SmoothingDistribution:
        """The smoothing distribution."""
        return self.sampler.noise

    @property
    def levels(self) -> int | None:
        """Inputs are multiples of 1 / levels, and noise is exact; None: noise in floating point."""
        return self.sampler.levels

    @property
    def fingerprint(self) -> str:
        """What a memory of its answers belongs to: a digest of model, preprocessing, noise, norm and device."""
        return self.sampler.fingerprint

    def certify(
        self,
        x: Inputs,
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        seed: int = 0,
        tolerance: float = 0.0,
        runner_up: bool = False,
        indices: Sequence[int] | None = None,
        progress: bool = False,
        on_progress: Progress | None = None,
    ) -> Certificates[PointCertificate]:
        """Certify each input: its class, and a radius within which no perturbation changes it.

        Each certificate is wrong with probability at most alpha, over the sampling. It holds for the classifier
        smoothed at its sigma. If sigma differs between inputs, settle the certificates by a `CertificateMemory`.

        Args:
            x: Inputs as the model takes them: a tensor or array (batch, …), a pair (inputs, labels), a Dataset or a
                DataLoader. Labels are used only for the accuracy of the result.
            n0: Samples that select the class.
            n: Samples that estimate its probability.
            alpha: Failure probability.
            seed: Seeds all noise, together with the index of an input and the stage.
            tolerance: Stop early when more samples would enlarge the radius by less than this share. n is then the
                maximum. 0: every input gets n samples.
            runner_up: Bound the strongest other class too, for larger radii from the same samples.
            indices: The index of each input in its data set; by default 0, 1, 2, … Index and seed decide the noise of
                an input, whatever its batch. So its answer is the same in every batch, if the model gives a row the
                same bits in every place of a batch.
            progress: Show a bar, in a terminal or in a notebook.
            on_progress: Called with the number of forward passes done since the last call.
        """
        budget = Budget(n0=n0, n=n, alpha=alpha, seed=seed, tolerance=tolerance, runner_up=runner_up)
        return self._certified(x, budget, indices, progress, on_progress)

    def certify_at(
        self,
        x: Inputs,
        radii: Sequence[float],
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        progress: bool = False,
        on_progress: Progress | None = None,
    ) -> Certificates[PointCertificate]:
        """Certify only whether the radius is at least each of `radii`, with as few samples as possible.

        The radius of a certificate is the largest of `radii` that was proved, and its `n` is the number of samples that
        were drawn. The argument n is the maximum per input. The other arguments are those of `certify`.
        """
        if not radii:
            raise InvalidInputError("expected one or more radii, got none")
        budget = Budget(n0=n0, n=n, alpha=alpha, seed=seed, radii=tuple(radii))
        return self._certified(x, budget, indices, progress, on_progress)

    def _certified(
        self, inputs: Inputs, budget: Budget, indices: Sequence[int] | None, bar: bool, on_progress: Progress | None
    ) -> Certificates[PointCertificate]:
        if isinstance(inputs, Tensor):
            self.sampler.checked(inputs, indices)  # whole, so that a bad input is found before any sampling
        count = count_inputs(inputs)
        total = None if count is None else count * (budget.n0 + budget.n + self.search.cost())
        with progress_bar(bar, total, on_progress) as advance:
            return gather(
                inputs,
                indices,
                size=lambda x: self.block_size(Job(self.sampler.checked(x, None)[0], (), budget, None)),
                certify=lambda x, at: self.certify_job(self.job(x, budget, indices=at, on_progress=advance)),
            )

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
        """Predict the class of each input; None: it abstains, because no class leads significantly at level alpha.

        The arguments are those of `certify`. n0 is used only with a search that fixes the class.
        """
        whole = self.job(x, Budget(n0=n0, n=n, alpha=alpha, seed=seed), indices=indices, on_progress=on_progress)
        answers: list[int | None] = []
        for part in whole.parts(self.sampler.group(whole)):
            job = whole[part]
            label, choice = self._choose(job)
            for i, row in enumerate(self.sampler.stage_counts(job, choice, Stage.PREDICTION, job.budget.n)):
                (top, runner_up), (leader, _) = (pair.tolist() for pair in row.topk(2))
                is_clear = leads(top, runner_up, n=job.budget.n, alpha=alpha, defect=self.sampler.defect(job.x))
                is_kept = label is None or leader == int(label[i])
                answers.append(leader if is_clear and is_kept else None)
        return answers

    def job(
        self,
        x: Tensor,
        budget: Budget,
        *,
        indices: Sequence[int] | None = None,
        truth: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> Job:
        """Inputs to certify, checked. The true classes only decide which inputs get `budget.n_wrong` samples."""
        x, indices = self.sampler.checked(x, indices)
        if truth is not None and len(truth) != len(x):
            raise InvalidInputError(f"expected one true class per input, got {len(truth)} for {len(x)} inputs")
        self.sampler.ask_twice(x, [self.sampler.stream(budget.seed, index, Stage.PREFLIGHT) for index in indices])
        classes = None if truth is None else tuple(int(label) for label in truth)
        return Job(x, indices, budget, on_progress, truth=classes)

    def block_size(self, job: Job) -> int:
        """How many inputs are searched together; the last bits of an answer may depend on it."""
        return max(_GROUP, self.sampler.group(job))

    def choose(self, job: Job) -> Decision:
        """The class and the noise of each input, from samples of their own."""
        self.sampler.check_fixed()
        label, choice = self._choose(job)
        return self.sampler.decide(job, choice) if label is None else Decision(label=label, choice=choice)

    def certify_block(self, job: Job, *, begin: int = 0) -> Iterator[PointCertificate]:
        """The certificates of a block of inputs, each as soon as it is known.

        The first `begin` are known already: they take part in what inputs share, and are not sampled again.
        """
        decision = self.choose(job)
        for part in self.sampler.estimate_parts(job):
            if part.stop > begin:
                yield from self.sampler.estimate(job[part], decision[part])[max(0, begin - part.start) :]

    def _choose(self, job: Job) -> tuple[Tensor | None, Choice]:
        """The class where the search keeps to the prediction under sigma0, else None; and what the search found."""
        task = SearchTask(
            experts=self.experts,
            noise=self.noise,
            x=job.x,
            label=None,
            n=job.budget.n,
            alpha=job.budget.alpha,
            indices=job.indices,
            stream=partial(self.sampler.stream, job.budget.seed),
            batch_size=self.sampler.rows(job.x),
            levels=self.levels,
            on_progress=job.on_progress,
        )
        if self.search.fixes_class:
            label, leader = select_class(task, job.budget.n0, self.class_rule)
            task = replace(task, label=label.to(job.x.device), leader=leader)
        return task.label, task.checked(self.search.find(task))

    def cost(self, budget: Budget) -> int:
        """Forward passes per input, at most: for progress and planning."""
        selection = budget.n0 * (len(self.experts) if self.search.fixes_class else 1)
        return selection + self.search.cost_of(self.experts) + budget.n


def _number(sigma: float) -> float:
    try:
        return float(sigma)
    except (TypeError, ValueError, RuntimeError) as error:  # in whatever way a thing refuses to be a number
        raise InvalidInputError(f"expected a number or a search as sigma, got {sigma!r}") from error
