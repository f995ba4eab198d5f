"""The networks of a smoothed classifier under its noise: what draws the samples that certification counts."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from sigmax.certificate import PointCertificate
from sigmax.estimation import Claim, plan_draws
from sigmax.experts import Expert
from sigmax.inputs import check_inputs
from sigmax.jobs import Decision, Job, UnderWay
from sigmax.lattice import grid_slack
from sigmax.models.classifier import BaseClassifier
from sigmax.named import name_of
from sigmax.noise import SmoothingDistribution
from sigmax.plain import to_plain
from sigmax.sampling import Progress, count_by_expert, default_batch_size, noisy_batch
from sigmax.search import Choice
from sigmax.streams import Stage, Stream, random_stream


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Networks, the noise added to their inputs, and the one shape of their batches."""

    experts: tuple[Expert, ...]
    noise: SmoothingDistribution
    levels: int | None  # inputs are multiples of 1 / levels, and noise is exact; None: noise in floating point
    batch_size: int | None  # None: by the size of the input
    stages: Mapping[Stage, Stage]  # stages whose noise is drawn instead of others'
    # Kinds of batches for which the networks were asked twice.
    _asked: set[tuple[object, ...]] = field(default_factory=set, init=False, compare=False)

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

    def rows(self, x: Tensor) -> int:
        """Noisy samples per forward pass for inputs like x, (batch, …)."""
        return self.batch_size or default_batch_size(x[0].numel())

    def group(self, job: Job) -> int:
        """Inputs to sample together so that padding the last batch costs at most a sixteenth."""
        if not len(job.x):
            return 1
        most = max(1, 2**22 // self.classifier.num_classes)  # bounds the table of counts
        return min(most, max(1, -(-16 * self.rows(job.x) // job.budget.n)))

    def checked(self, x: Tensor, indices: Sequence[int] | None) -> tuple[Tensor, tuple[int, ...]]:
        """The inputs on the device of the model, and their indices; refuses what cannot be certified."""
        self.check_fixed()
        indices = check_inputs(x, indices)
        return x.to(self.classifier.device), indices

    def check_fixed(self) -> None:
        """Refuse networks that changed, or are in training mode; see `BaseClassifier.check_fixed`."""
        for expert in self.experts:
            expert.classifier.check_fixed()

    def ask_twice(self, x: Tensor, streams: Sequence[Stream]) -> None:
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

    def stream(self, seed: int, index: int, stage: Stage) -> Stream:
        """The random numbers of an input at this stage."""
        return random_stream(seed, index, self.stages.get(stage, stage), self.classifier.device)

    def stage_counts(self, job: Job, choice: Choice, stage: Stage, n: int) -> Tensor:
        """How often each class leads among n samples of each input of a job, (inputs, classes)."""
        streams = [self.stream(job.budget.seed, index, stage) for index in job.indices]
        return self.counts(job.x, choice, n=n, streams=streams, on_progress=job.on_progress)

    def counts(
        self,
        x: Tensor,
        choice: Choice,
        *,
        n: int | Sequence[int],
        streams: Sequence[Stream],
        on_progress: Progress | None,
    ) -> Tensor:
        """How often each class leads among n samples of each input, (inputs, classes)."""
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

    def defect(self, x: Tensor) -> float:
        """How far a probability under the noise drawn for inputs like x, (batch, …), may be from the true one."""
        return self.noise.defect(x[0].numel(), is_exact=self.levels is not None)

    def decide(self, job: Job, choice: Choice) -> Decision:
        """The class of each input under this noise, from selection samples."""
        counts = self.stage_counts(job, choice, Stage.SELECTION, job.budget.n0)
        return Decision(label=counts.argmax(dim=1).to(job.x.device), choice=choice)

    def estimate_parts(self, job: Job) -> Iterator[slice]:
        """The parts of a job to estimate together: where inputs may stop early, they share batches with others."""
        stops_early = job.budget.tolerance or job.budget.radii
        return job.parts(len(job.x) if stops_early else self.group(job))

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
        self.check_fixed()
        return [self._under_way(job, decision, i) for i in range(len(job.x))]

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
            defect=self.defect(job.x),
            slack=0.0 if self.levels is None else grid_slack(job.x[i], self.levels),
        )
        return UnderWay(
            x=job.x[i],
            label=label,
            choice=choice[i : i + 1],
            estimate=job.budget.estimate(claim, truth=None if job.truth is None else job.truth[i]),
            # A fresh stream: reusing the samples of search or selection would void the bound.
            stream=self.stream(job.budget.seed, job.indices[i], Stage.ESTIMATION),
            counts=torch.zeros(self.classifier.num_classes, dtype=torch.int64),
        )

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
        counts = self.counts(
            x[places],
            Choice.joined([one.choice for one in inputs])[places],
            n=[more for _, more in draws],
            streams=[inputs[i].stream for i, _ in draws],
            on_progress=on_progress,
        )
        for (i, more), new in zip(draws, counts, strict=True):
            inputs[i].take(more, new)
