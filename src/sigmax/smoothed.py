"""SmoothedClassifier: predict and certify, with one sigma for all or with per-input sigma."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, final

import torch
from torch import Tensor

from sigmax.bounds import leads
from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.estimation import Claim, plan_draws
from sigmax.experts import Experts
from sigmax.inputs import Inputs, check_inputs, count_inputs, progress_bar
from sigmax.jobs import Decision, Job, UnderWay
from sigmax.lattice import grid_slack
from sigmax.models.classifier import BaseClassifier
from sigmax.models.denoisers import Denoiser, with_denoiser
from sigmax.models.outputs import Outputs
from sigmax.models.reference import ModelReference
from sigmax.named import name_of
from sigmax.noise import Gaussian, SmoothingDistribution
from sigmax.plain import to_plain
from sigmax.pretrained import pretrained
from sigmax.results import Certificates, gather
from sigmax.sampling import Progress, count_by_expert, default_batch_size, noisy_batch
from sigmax.search import Choice, FixedSigma, SearchTask, SigmaSearch
from sigmax.search.base import BoundedSearch
from sigmax.selection import select_class
from sigmax.streams import Stage, Stream, random_stream

# Inputs selected and searched together: enough to fill batches with n0 = 100 samples each, few enough
# that little is lost when a run is interrupted.
_GROUP = 16


@final
class SmoothedClassifier:
    """The classifier that answers what `model` answers most often under noise.

    Args:
        model: A `torch.nn.Module` in eval mode, or any callable from (batch, …) to (batch, classes); or `Experts`,
            several of these, among which the search chooses for each input.
        num_classes: How many classes it tells apart.
        noise: The smoothing distribution; it decides the norm of the certified balls.
        sigma: One number for all inputs, or a search that chooses sigma for each.
        outputs: Whether the model returns "logits" or "probabilities".
        levels: Inputs are multiples of 1 / levels, such as 255 for 8-bit images. Noise is then exact, and certificates
            hold for every input on that grid, rounding included. None: noise in floating point.
        batch_size: Noisy samples per forward pass; by default chosen by the size of the input.
        identity: Names a model that is no `torch.nn.Module`; see `BaseClassifier`.
        denoiser: Removes the noise before the model: a callable (noisy, sigma) -> clean, with one sigma per row in the
            units of the inputs. So a model that never saw noise can be certified.
        stages: Stages whose noise is drawn instead of others', where another classifier draws these.

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
        self.noise = noise or Gaussian()
        self.search = sigma if isinstance(sigma, SigmaSearch) else FixedSigma(_number(sigma))
        family = model if isinstance(model, Experts) else Experts([model])
        self.class_rule = family.class_rule
        self.experts = family.resolve(
            num_classes=num_classes,
            outputs=outputs,
            identity=identity,
            sigma=self.search.initial,
            bounds=self.search.limits if isinstance(self.search, BoundedSearch) else None,
        )
        if len(self.experts) > 1 and not self.search.takes_experts:
            raise InvalidInputError(
                f"expected a search that chooses among several networks, got {name_of(type(self.search))}; "
                "use HalvingSearch (halving)"
            )
        self.levels = levels
        self.batch_size = batch_size
        self._stages = dict(stages or {})
        self._asked: set[tuple[object, ...]] = set()  # kinds of batches for which the model was asked twice

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

        Noise, sigma and the limits of a search that `sigma` names, such as "halving", are those of the training.
        """
        return cls(**pretrained(model, sigma, batch_size), levels=levels, batch_size=batch_size)

    @property
    def classifier(self) -> BaseClassifier:
        """The base classifier; of several, the first."""
        return self.experts[0].classifier

    @property
    def fingerprint(self) -> str:
        """What a memory of this classifier's answers belongs to: model, preprocessing, norm, noise and accelerator.

        Of several networks their order counts too, because certificates name a network by its place.
        """
        networks = " ".join(expert.classifier.fingerprint for expert in self.experts)
        parts = f"{networks} {name_of(type(self.noise))} l{self.noise.norm}"
        if settings := to_plain(self.noise.settings()):
            parts += f" {json.dumps(settings)}"
        parts += " float" if self.levels is None else f" exact 1/{self.levels}"
        place, accelerator = self.classifier.device.type, torch.accelerator.current_accelerator()
        if accelerator is not None and place == accelerator.type:
            parts += f" on {place}"  # which may round otherwise
        return hashlib.sha256(parts.encode()).hexdigest()

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

        Each certificate is wrong with probability at most alpha, over the sampling. Sigma is held fixed:
        where it differs between inputs, give the certificates to a `CertificateMemory`.

        Args:
            x: Inputs in the model's own input space: a tensor or array (batch, …), a pair (inputs, labels), a Dataset
                or a DataLoader. Labels only serve the accuracy of the result.
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
        """Certify only whether the radius is at least each of `radii`, with as many samples as that takes.

        The radius of a certificate is the largest of `radii` that was proved, and its n the samples that
        took; n here is the most an input gets. The other arguments are those of `certify`.
        """
        if not radii:
            raise InvalidInputError("expected one or more radii, got none")
        budget = Budget(n0=n0, n=n, alpha=alpha, seed=seed, radii=tuple(radii))
        return self._certified(x, budget, indices, progress, on_progress)

    def _certified(
        self, inputs: Inputs, budget: Budget, indices: Sequence[int] | None, bar: bool, on_progress: Progress | None
    ) -> Certificates[PointCertificate]:
        if isinstance(inputs, Tensor):
            self.checked(inputs, indices)  # whole, so that a bad input is found before any sampling
        count = count_inputs(inputs)
        total = None if count is None else count * (budget.n0 + budget.n + self.search.cost())
        with progress_bar(bar, total, on_progress) as advance:
            return gather(
                inputs,
                indices,
                size=lambda x: self.block_size(Job(self.checked(x, None)[0], (), budget, None)),
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
        """Predict the class of each input; None where the samples cannot tell at level alpha.

        The arguments are those of `certify`; n0 is used only by a search that fixes the class.
        """
        whole = self.job(x, Budget(n0=n0, n=n, alpha=alpha, seed=seed), indices=indices, on_progress=on_progress)
        answers: list[int | None] = []
        for part in whole.parts(self._group(whole)):
            job = whole[part]
            label, choice = self._choose(job)
            for i, row in enumerate(self._stage_counts(job, choice, Stage.PREDICTION, job.budget.n)):
                (top, runner_up), (leader, _) = (pair.tolist() for pair in row.topk(2))
                is_clear = leads(top, runner_up, n=job.budget.n, alpha=alpha, defect=self._defect(job.x))
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
        x, indices = self.checked(x, indices)
        if truth is not None and len(truth) != len(x):
            raise InvalidInputError(f"expected one true class per input, got {len(truth)} for {len(x)} inputs")
        self._ask_twice(x, [self._stream(budget.seed, index, Stage.PREFLIGHT) for index in indices])
        classes = None if truth is None else tuple(int(label) for label in truth)
        return Job(x, indices, budget, on_progress, truth=classes)

    def block_size(self, job: Job) -> int:
        """Inputs whose class and sigma are chosen together; the last bits of an answer may depend on it."""
        return max(_GROUP, self._group(job))

    def choose(self, job: Job) -> Decision:
        """The class and the noise of each input, from samples of their own."""
        self._check_fixed()
        label, choice = self._choose(job)
        return self.decide(job, choice) if label is None else Decision(label=label, choice=choice)

    def decide(self, job: Job, choice: Choice) -> Decision:
        """The class of each input under this noise, from selection samples."""
        counts = self._stage_counts(job, choice, Stage.SELECTION, job.budget.n0)
        return Decision(label=counts.argmax(dim=1).to(job.x.device), choice=choice)

    def estimate_parts(self, job: Job) -> Iterator[slice]:
        """The parts of a job to estimate together: where inputs may stop early, they share batches with others."""
        stops_early = job.budget.tolerance or job.budget.radii
        return job.parts(len(job.x) if stops_early else self._group(job))

    def estimate(self, job: Job, decision: Decision) -> list[PointCertificate]:
        """Sample and look in turns until every input has its certificate."""
        inputs = self.begin(job, decision)
        while left := [one for one in inputs if one.point is None]:
            self.sample(left, on_progress=job.on_progress)
            if job.on_progress is not None:
                unused = sum(job.budget.n - one.drawn for one in left if one.point is not None)
                job.on_progress(unused)
        return [one.point for one in inputs if one.point is not None]

    def begin(self, job: Job, decision: Decision) -> list[UnderWay]:
        """The inputs of a job on their way to certificates, before the first sample."""
        self._check_fixed()
        return [self._under_way(job, decision, i) for i in range(len(job.x))]

    def sample(self, inputs: Sequence[UnderWay], *, on_progress: Progress | None = None) -> None:
        """Sample each of these inputs until its next look; inputs of one network share batches."""
        for expert in sorted({one.expert for one in inputs}):
            self._sample([one for one in inputs if one.expert == expert], on_progress)

    def _sample(self, inputs: Sequence[UnderWay], on_progress: Progress | None) -> None:
        """Sample inputs of one network until their next looks; samples beyond these fill the batches."""
        x = torch.stack([one.x for one in inputs])
        estimates, drawn, due = zip(*((one.estimate, one.drawn, one.due) for one in inputs), strict=True)
        plans = plan_draws(estimates, drawn, due, batch=self.rows(x))
        draws = [(i, more) for i, plan in enumerate(plans) for more in plan]
        places = torch.tensor([i for i, _ in draws])
        counts = self._counts(
            x[places],
            Choice.joined([one.choice for one in inputs])[places],
            n=[more for _, more in draws],
            streams=[inputs[i].stream for i, _ in draws],
            on_progress=on_progress,
        )
        for (i, more), new in zip(draws, counts, strict=True):
            inputs[i].take(more, new)

    def certify_job(self, whole: Job) -> list[PointCertificate]:
        """The certificates of all inputs of a job."""
        points: list[PointCertificate] = []
        for block in whole.parts(self.block_size(whole)):
            points += self.certify_block(whole[block])
        return points

    def certify_block(self, job: Job, *, begin: int = 0) -> Iterator[PointCertificate]:
        """The certificates of a block of inputs, each as soon as it is known.

        The first `begin` are known already: they take part in what inputs share, and are not sampled again.
        """
        decision = self.choose(job)
        for part in self.estimate_parts(job):
            if part.stop > begin:
                yield from self.estimate(job[part], decision[part])[max(0, begin - part.start) :]

    def _under_way(self, job: Job, decision: Decision, i: int) -> UnderWay:
        choice, label = decision.choice, int(decision.label[i])
        expert = int(choice.network[i])
        claim = Claim(
            label=label,
            sigma=float(choice.sigma[i]),
            tau=float(choice.told[i]) if self.experts[expert].classifier.takes_level else None,
            expert=expert,
            noise=self.noise,
            alpha=job.budget.alpha,
            is_exact=self.levels is not None,
            defect=self._defect(job.x),
            slack=0.0 if self.levels is None else grid_slack(job.x[i], self.levels),
        )
        return UnderWay(
            x=job.x[i],
            label=label,
            choice=choice[i : i + 1],
            estimate=job.budget.estimate(claim, truth=None if job.truth is None else job.truth[i]),
            # A fresh stream: reusing the samples of search or selection would void the bound.
            stream=self._stream(job.budget.seed, job.indices[i], Stage.ESTIMATION),
            counts=torch.zeros(self.classifier.num_classes, dtype=torch.int64),
        )

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
            stream=partial(self._stream, job.budget.seed),
            batch_size=self.rows(job.x),
            levels=self.levels,
            on_progress=job.on_progress,
        )
        if self.search.fixes_class:
            label, leader = select_class(task, job.budget.n0, self.class_rule)
            task = replace(task, label=label.to(job.x.device), leader=leader)
        return task.label, task.checked(self.search.find(task))

    def _stage_counts(self, job: Job, choice: Choice, stage: Stage, n: int) -> Tensor:
        streams = [self._stream(job.budget.seed, index, stage) for index in job.indices]
        return self._counts(job.x, choice, n=n, streams=streams, on_progress=job.on_progress)

    def _counts(
        self,
        x: Tensor,
        choice: Choice,
        *,
        n: int | Sequence[int],
        streams: Sequence[Stream],
        on_progress: Progress | None,
    ) -> Tensor:
        return count_by_expert(
            [expert.classifier for expert in self.experts],
            x,
            choice.sigma,
            tau=choice.tau,
            expert=choice.expert,
            noise=self.noise,
            levels=self.levels,
            n=n,
            streams=streams,
            batch_size=self.rows(x),
            on_progress=on_progress,
        )

    def _defect(self, x: Tensor) -> float:
        """How far a probability under the noise drawn for inputs like x, (batch, …), may be from the true one."""
        return self.noise.defect(x[0].numel(), is_exact=self.levels is not None)

    def _check_fixed(self) -> None:
        for expert in self.experts:
            expert.classifier.check_fixed()

    def cost(self, budget: Budget) -> int:
        """Forward passes per input, at most: for progress and planning."""
        selection = budget.n0 * (len(self.experts) if self.search.fixes_class else 1)
        return selection + self.search.cost_of(self.experts) + budget.n

    def _stream(self, seed: int, index: int, stage: Stage) -> Stream:
        return random_stream(seed, index, self._stages.get(stage, stage), self.classifier.device)

    def rows(self, x: Tensor) -> int:
        """Noisy samples per forward pass for inputs like x, (batch, …)."""
        return self.batch_size or default_batch_size(x[0].numel())

    def checked(self, x: Tensor, indices: Sequence[int] | None) -> tuple[Tensor, tuple[int, ...]]:
        """The inputs on the device of the model, and their indices; refuses what cannot be certified."""
        self._check_fixed()
        indices = check_inputs(x, indices)
        return x.to(self.classifier.device), indices

    def _ask_twice(self, x: Tensor, streams: Sequence[Stream]) -> None:
        """Refuse a model that is no function of each row, before it is first sampled with batches of this shape."""
        rows = self.rows(x) if len(x) else 0
        kind = (x.device, x.dtype, rows, *x.shape[1:])
        if not rows or kind in self._asked:
            return
        few = x[:rows]
        for expert in self.experts:
            sigma = few.new_full((len(few),), expert.sigma)
            batch = noisy_batch(few, sigma, noise=self.noise, levels=self.levels, streams=streams[:rows], rows=rows)
            expert.classifier.check_answers(batch, batch.new_full((rows,), expert.sigma))
        self._asked.add(kind)

    def _group(self, job: Job) -> int:
        """Inputs to sample together so that padding the last batch costs at most a sixteenth."""
        if not len(job.x):
            return 1
        most = max(1, 2**22 // self.classifier.num_classes)  # bounds the table of counts
        return min(most, max(1, -(-16 * self.rows(job.x) // job.budget.n)))


def _number(sigma: float) -> float:
    try:
        return float(sigma)
    except (TypeError, ValueError, RuntimeError) as error:  # in whatever way a thing refuses to be a number
        raise InvalidInputError(f"expected a number or a search as sigma, got {sigma!r}") from error
