"""One training step after another: data, noise, sigma of each example, objective, optimizer.

A step depends only on the recipe, the step number, the weights and their average, the optimizer's state and the sigma
of each example. Order, augmentation, noise and learning rate are functions of (seed, step). So a checkpoint holds no
more than these, and a resumed training gives the same bits.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, final

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError, ModelError, TrainingError
from sigmax.models import BaseClassifier, Normalize, build_network, with_normalisation
from sigmax.models.architectures import AWARE
from sigmax.models.levels import takes_level
from sigmax.train.draws import Draws
from sigmax.train.evaluation import evaluating
from sigmax.train.examples import ExampleStream
from sigmax.train.objectives import Batch
from sigmax.train.optimizers import make_optimizer
from sigmax.train.recipe import Recipe
from sigmax.train.schedule import learning_rate
from sigmax.train.sigma import Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What people watch, over all processes."""

    step: int  # from 1 …
    steps: int  # … to this
    epoch: int  # from 1
    examples: int
    loss: float
    noisy_accuracy: float  # on the step's own noisy copies
    mean_sigma: float
    learning_rate: float
    held_out_accuracy: float | None = None  # under one draw of noise; only at the end of an epoch


@final
class Training:
    """A training under way: `step` moves it on, `state` and `restore` carry it over an interruption.

    It runs on a fabric that is already launched, by default in this process. It starts from `network`, which takes
    pixels in the data's own space, or from fresh weights. A noise-aware network may start as its plain form.
    """

    def __init__(
        self, recipe: Recipe, source: ImageSource, *, fabric: Fabric | None = None, network: nn.Module | None = None
    ) -> None:
        self.recipe = recipe
        self.source = source
        self.fabric = fabric or Fabric(devices=1, precision=recipe.precision)
        precision = self.fabric.strategy.precision.precision
        if precision != recipe.precision:
            raise InvalidInputError(
                f"expected a fabric of precision {recipe.precision}, as the recipe says, got {precision}"
            )
        self.examples = ExampleStream(
            source,
            batch=recipe.batch,
            augment=recipe.augment,
            seed=recipe.seed,
            rank=self.fabric.global_rank,
            processes=self.fabric.world_size,
        )
        self.steps = recipe.epochs * self.examples.steps_per_epoch
        self.steps_done = 0
        self.network = fresh_network(recipe, source)
        self.start: str | None = None  # a digest of the network it starts from; None: fresh weights
        if network is not None:
            with evaluating(network) as bare:
                self.start = BaseClassifier(bare, num_classes=len(source.class_names)).fingerprint
            self.network = _started(self.network, network, recipe, source)
        with evaluating(self.network) as bare, torch.no_grad():  # a network that does not take these images is refused
            x = torch.from_numpy(source.images([0]))
            BaseClassifier(bare, num_classes=len(source.class_names)).scores(x, torch.ones(1))
        if len(source.shape) == 3:
            # Convolutions run up to twice as fast in this layout; the weights are the same.
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        decay = recipe.weight_decay
        optimizer = make_optimizer(
            recipe.optimizer, self.network, lr=recipe.lr, momentum=recipe.momentum, weight_decay=decay
        )
        self.model, self.optimizer = self.fabric.setup(self.network, optimizer)
        self.average: AveragedModel | None = None
        if recipe.ema:
            decayed = get_ema_multi_avg_fn(recipe.ema)  # type: ignore[no-untyped-call]
            self.average = AveragedModel(self.network, multi_avg_fn=decayed, use_buffers=True)
        self.sigma = torch.full((len(source),), recipe.sigma)  # of each example, from its last visit

    @property
    def result(self) -> nn.Module:
        """The network to certify: the average of the weights where there is one."""
        return self.network if self.average is None else self.average.module

    def __iter__(self) -> Iterator[StepReport]:
        """Take all steps that are left, reporting each."""
        while self.steps_done < self.steps:
            yield self.step()

    def step(self) -> StepReport:
        """Take the next step of all processes together."""
        recipe, fabric, step = self.recipe, self.fabric, self.steps_done
        epoch = step // self.examples.steps_per_epoch
        # Where a network draws numbers of its own (dropout), they too follow from the step.
        torch.manual_seed(recipe.seed + step * fabric.world_size + fabric.global_rank)
        self.model.train()
        self._share_buffers()
        examples = self.examples.at(step)
        x, labels = fabric.to_device(examples.x), fabric.to_device(examples.labels)
        draws = Draws.at(recipe.seed, step, batch=self.examples.batch, share=examples.share, device=fabric.device)
        # Drawn before the source of sigma draws from the same stream: K = 0 leaves the noise as it is.
        eps = draws.noise(recipe.noise, x, recipe.objective.draws)
        sigma = recipe.sigma_source.choose(
            Visit(
                network=self.model,
                noise=recipe.noise,
                x=x,
                sigma=self.sigma[examples.indices[examples.share]].to(x),
                initial=recipe.sigma,
                epoch=epoch,
                draws=draws,
            )
        )
        self.sigma[examples.indices] = self._gather(sigma).to(self.sigma)
        uniform = draws.uniform()  # last, for the same reason
        batch = Batch(x=x, labels=labels, sigma=sigma, eps=eps, uniform=uniform, noise=recipe.noise, epoch=epoch)
        with fabric.autocast():
            outcome = recipe.objective(self.model, batch)
        is_correct = (outcome.logits.detach().argmax(dim=-1) == labels.unsqueeze(1)).float()  # share draws
        numbers = torch.stack([outcome.loss.detach().float(), is_correct.mean(), sigma.mean().float()])
        loss, accuracy, mean_sigma = self._gather(numbers.unsqueeze(0)).mean(dim=0).tolist()
        if not math.isfinite(loss):
            raise TrainingError(f"the loss is {loss} at step {step + 1} of {self.steps} (epoch {epoch + 1})")
        drop_every = recipe.drop_every * self.examples.steps_per_epoch
        rate = learning_rate(recipe.schedule, peak=recipe.lr, step=step, steps=self.steps, drop_every=drop_every)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        self.optimizer.zero_grad()
        self.examples.prepare(step + 1)  # here: for most of the backward pass the interpreter is free
        fabric.backward(outcome.loss)
        if recipe.clip is not None:
            fabric.clip_gradients(self.model, self.optimizer, max_norm=recipe.clip, error_if_nonfinite=False)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.network)
        self.steps_done += 1
        return StepReport(
            step=self.steps_done,
            steps=self.steps,
            epoch=epoch + 1,
            examples=self.examples.batch,
            loss=loss,
            noisy_accuracy=accuracy,
            mean_sigma=mean_sigma,
            learning_rate=rate,
        )

    def state(self) -> dict[str, Any]:
        """All that the next step depends on beside the recipe and the data; refused if not all of it is finite."""
        for name, tensor in (*self.network.state_dict().items(), ("sigma", self.sigma)):
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise TrainingError(f"{name} is no longer finite after step {self.steps_done} of {self.steps}")
        return {
            "steps_done": self.steps_done,
            "state_dict": self.result.state_dict(),  # what certification loads
            "weights": self.network.state_dict(),  # the same tensors where there is no average
            "optimizer": self.optimizer.state_dict(),
            "sigma": self.sigma.clone(),
            "precision": self.fabric.strategy.precision.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.steps_done = state["steps_done"]
        self.network.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.module.load_state_dict(state["state_dict"])
            self.average.n_averaged.fill_(self.steps_done)
        self.sigma = state["sigma"]
        self.fabric.strategy.precision.load_state_dict(state["precision"])

    def _gather(self, share: Tensor) -> Tensor:
        """The rows of all processes, in their order."""
        if self.fabric.world_size == 1:
            return share
        gathered = self.fabric.all_gather(share)  # processes rows …
        assert isinstance(gathered, Tensor)
        return gathered.flatten(0, 1)

    def _share_buffers(self) -> None:
        """Give all processes the batch-norm statistics of the first: search and attack use them."""
        if self.fabric.world_size > 1:
            for buffer in self.network.buffers():
                torch.distributed.broadcast(buffer, src=0)


def _started(fresh: nn.Module, start: nn.Module, recipe: Recipe, source: ImageSource) -> nn.Module:
    """The network to train from this start; a noise-aware one may start as its plain form, which it then equals."""
    if not takes_level(fresh) or takes_level(start):
        _check_fits(start, fresh, recipe, source)
        return start
    plain = replace(recipe, arch=plain_form(recipe.arch))
    _check_fits(start, fresh_network(plain, source), plain, source)
    fresh.load_state_dict(start.state_dict(), strict=False)  # the level has no effect yet
    return fresh


def plain_form(arch: str) -> str:
    """The architecture without its noise level."""
    return arch.removesuffix(AWARE)


def _check_fits(network: nn.Module, fresh: nn.Module, recipe: Recipe, source: ImageSource) -> None:
    """Refuse to fine-tune a network that the recipe and the data do not fit: its file could not be loaded again."""

    def described(network: nn.Module) -> list[str]:
        # Settings without tensors, such as a normalisation or a stride, show in the text of a network.
        shapes = [f"{name} of shape {tuple(tensor.shape)}" for name, tensor in network.state_dict().items()]
        return [*shapes, *str(network).splitlines()]

    for ours, theirs in zip_longest(described(network), described(fresh), fillvalue="nothing more"):
        if ours != theirs:
            raise ModelError(
                f"expected a starting network with {theirs.strip()}, because of arch={recipe.arch}, "
                f"normalize={recipe.normalize} and {source.name}, got {ours.strip()}; set --arch and --normalize to "
                "what it has"
            )


def fresh_network(recipe: Recipe, source: ImageSource) -> nn.Module:
    """The recipe's network for this data, with the weights that the seed decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = build_network(recipe.arch, num_classes=len(source.class_names), in_channels=source.shape[0])
    return with_normalisation(network, Normalize.parse(recipe.normalize))
