"""One training step after another: data, noise, sigma of each example, objective, optimizer.

What a step does depends on (recipe, step number, weights, optimizer, sigma table) alone. Order,
augmentation, noise and learning rate are functions of (seed, step), so these five are all there is to
save, and a resumed training cannot tell that it was interrupted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, final

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError, ModelError, TrainingError
from sigmax.models import BaseClassifier, Normalize, build_network, with_normalisation
from sigmax.models.architectures import told
from sigmax.noise import add_noise
from sigmax.sampling import Stage, random_stream
from sigmax.train.evaluation import evaluating
from sigmax.train.examples import ExampleStream
from sigmax.train.objectives import Batch
from sigmax.train.optimizers import make_optimizer
from sigmax.train.recipe import Recipe
from sigmax.train.schedule import learning_rate
from sigmax.train.sigma import SigmaTable


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


@final
class Training:
    """A training under way: `step` moves it on, `state` and `restore` carry it over an interruption.

    Args:
        recipe: The settings.
        source: The training examples.
        fabric: Where it runs, already launched; by default in this process.
        network: A network with weights to start from, for pixels in the data's own space; by default
            fresh weights that follow from the seed.
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
            _check_fits(network, self.network, recipe, source)
            self.network = network
            with evaluating(network) as bare:
                self.start = BaseClassifier(bare, num_classes=len(source.class_names)).fingerprint
        _check_takes(self.network, source)
        if len(source.shape) == 3:
            # Convolutions run up to twice as fast in this layout; the weights are the same.
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = make_optimizer(
            recipe.optimizer,
            self.network,
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.model, self.optimizer = self.fabric.setup(self.network, optimizer)
        self.sigma = SigmaTable(
            recipe.sigma,
            examples=len(source),
            search=recipe.search if recipe.per_input else None,
            warmup=recipe.warmup,
        )

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
        stream = random_stream(recipe.seed, step, Stage.TRAINING, fabric.device)
        # Drawn before the search draws from the same stream: K = 0 leaves the noise as it is.
        eps = self._draw(x, recipe.objective.draws, stream)
        if recipe.sigma_range is not None:
            self.sigma.keep(examples.indices, self._draw_sigma(recipe.sigma_range, stream))
        with fabric.autocast():
            sigma = self.sigma.choose(
                self.model,
                x,
                examples.indices[examples.share],
                epoch=epoch,
                perturb=lambda x, sigma: add_noise(x, sigma, self._draw(x, recipe.search_samples, stream)),
                noise=recipe.noise,
            )
            self.sigma.keep(examples.indices, self._gather(sigma))
            outcome = recipe.objective(
                self.model, Batch(x=x, labels=labels, sigma=sigma, eps=eps, noise=recipe.noise, epoch=epoch)
            )
        is_correct = (outcome.logits.detach().argmax(dim=-1) == labels.unsqueeze(1)).float()  # share draws
        numbers = torch.stack([outcome.loss.detach().float(), is_correct.mean(), sigma.mean().float()])
        loss, accuracy, mean_sigma = self._gather(numbers.unsqueeze(0)).mean(dim=0).tolist()
        if not math.isfinite(loss):
            raise TrainingError(f"the loss is {loss} at step {step + 1} of {self.steps} (epoch {epoch + 1})")
        rate = self._set_learning_rate(step)
        self.optimizer.zero_grad()
        self.examples.prepare(step + 1)  # here: for most of the backward pass the interpreter is free
        fabric.backward(outcome.loss)
        if recipe.clip is not None:
            fabric.clip_gradients(self.model, self.optimizer, max_norm=recipe.clip, error_if_nonfinite=False)
        self.optimizer.step()
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
        for name, tensor in (*self.network.state_dict().items(), ("sigma", self.sigma.values)):
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise TrainingError(f"{name} is no longer finite after step {self.steps_done} of {self.steps}")
        return {
            "steps_done": self.steps_done,
            "state_dict": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sigma": self.sigma.values.clone(),
            "precision": self.fabric.strategy.precision.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.steps_done = state["steps_done"]
        self.network.load_state_dict(state["state_dict"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sigma.values = state["sigma"]
        self.fabric.strategy.precision.load_state_dict(state["precision"])

    def _draw(self, x: Tensor, draws: int, stream: torch.Generator) -> Tensor:
        """Noise for the share of this process, (share, draws, *dims).

        It is drawn for the whole batch: the noise of an example does not depend on how many share the work.
        """
        eps = x.new_empty((self.examples.batch, draws, *x.shape[1:]))
        return self.recipe.noise.fill(eps, generator=stream)[self.examples.share]

    def _draw_sigma(self, bounds: tuple[float, float], stream: torch.Generator) -> Tensor:
        """Levels for the whole batch, uniform in log sigma."""
        low, high = bounds
        share = torch.rand(self.examples.batch, generator=stream, device=stream.device)
        return low * (high / low) ** share

    def _gather(self, share: Tensor) -> Tensor:
        """The rows of all processes, in their order."""
        if self.fabric.world_size == 1:
            return share
        gathered = self.fabric.all_gather(share)  # processes rows …
        assert isinstance(gathered, Tensor)
        return gathered.flatten(0, 1)

    def _share_buffers(self) -> None:
        """Give all processes the batch-norm statistics of the first: search and attack look at them."""
        if self.fabric.world_size > 1:
            for buffer in self.network.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def _set_learning_rate(self, step: int) -> float:
        rate = learning_rate(
            self.recipe.schedule,
            peak=self.recipe.lr,
            step=step,
            steps=self.steps,
            drop_every=self.recipe.drop_every * self.examples.steps_per_epoch,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        return rate


def _check_fits(network: nn.Module, fresh: nn.Module, recipe: Recipe, source: ImageSource) -> None:
    """Refuse to fine-tune what the recipe and the data do not fit: its file could not be loaded again."""
    shapes, expected = ({n: tuple(t.shape) for n, t in net.state_dict().items()} for net in (network, fresh))
    if shapes != expected:
        name = next(n for n in (*expected, *shapes) if expected.get(n) != shapes.get(n))
        raise ModelError(
            f"expected a {recipe.arch} for the {len(source.class_names)} classes and {source.shape[0]} channels of "
            f"{source.name} to start from, got {name} of shape {shapes.get(name)}, not {expected.get(name)}"
        )
    # What has no tensors of its own, as the numbers of a normalisation or a stride, is in the text of a network.
    for ours, theirs in zip_longest(str(network).splitlines(), str(fresh).splitlines(), fillvalue="nothing more"):
        if ours != theirs:
            raise ModelError(
                f"expected a network to start from with {theirs.strip()}, as arch={recipe.arch} and "
                f"normalize={recipe.normalize} say, got {ours.strip()}; say what it has"
            )


def _check_takes(network: nn.Module, source: ImageSource) -> None:
    """Refuse a network that cannot look at these images, before any work."""
    with evaluating(network) as bare, torch.no_grad():
        x = torch.from_numpy(source.images([0]))
        answer = partial(told, bare, tau=torch.ones(1))
        BaseClassifier(answer, num_classes=len(source.class_names)).scores(x)


def fresh_network(recipe: Recipe, source: ImageSource) -> nn.Module:
    """The recipe's network for this data, with weights that follow from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = build_network(recipe.arch, num_classes=len(source.class_names), in_channels=source.shape[0])
    return with_normalisation(network, Normalize.parse(recipe.normalize))
