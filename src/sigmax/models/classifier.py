"""BaseClassifier: the function f that is smoothed. It checks what certification assumes of f."""

import hashlib
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from sigmax.errors import InvalidInputError, ModelError, one_line
from sigmax.models.backends import FastModel, device_of
from sigmax.models.contents import Contents, arithmetic, modules_in
from sigmax.models.denoisers import DenoisedBlackBox
from sigmax.models.levels import takes_level, told
from sigmax.models.outputs import Outputs, as_scores, check_callable, hint_for

# Changes of a score that count as rounding, as shares of the largest. In another row, sums may have another order.
# In the same row, only a few kernels of accelerators differ in the last bits.
_OTHER_ROW, _SAME_ROW = 1e-3, 1e-5


@final
class BaseClassifier:
    """A fixed function from a batch of inputs to one score per class.

    Args:
        model: A `torch.nn.Module` in eval mode, or any callable from (batch, …) to (batch, classes). Other outputs are
            accepted if they are unambiguous; see `as_scores`.
        num_classes: Scores per input.
        outputs: Whether the scores are "logits" or "probabilities". They are never guessed from the values.
        identity: A text that identifies this function. A callable that is not a module needs one for its fingerprint.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        *,
        num_classes: int,
        outputs: Outputs = "logits",
        identity: str | None = None,
    ) -> None:
        if num_classes < 2:
            raise InvalidInputError(f"expected num_classes >= 2, got num_classes={num_classes}")
        check_callable(model)
        if outputs not in ("logits", "probabilities"):
            raise InvalidInputError(f"expected outputs 'logits' or 'probabilities', got outputs={outputs!r}")
        self.model = model
        self.num_classes = num_classes
        self.outputs = outputs
        self.identity = identity
        self._takes_channels_last = True  # until it refuses them
        # An identity names a function of one's own, but not the denoiser before it.
        known = model.denoiser if isinstance(model, DenoisedBlackBox) else model
        self._contents = Contents(known) if known is not model or isinstance(model, nn.Module) else None
        self._arithmetic = arithmetic()
        self.check_fixed()

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters; the default device for a model without any."""
        return device_of(self.model) if isinstance(self.model, nn.Module) else torch.get_default_device()

    @property
    def backend(self) -> str | None:
        """What runs the model, with its version; None for a callable that is not a module."""
        if isinstance(self.model, FastModel):
            return self.model.backend_name
        return f"torch {torch.__version__}" if isinstance(self.model, nn.Module) else None

    @property
    def takes_torch_threads(self) -> bool:
        """Whether forward passes run on torch's threads of this processor."""
        if isinstance(self.model, FastModel) and self.model.has_own_threads:
            return False
        return isinstance(self.model, nn.Module) and self.device.type == "cpu"

    def check_fixed(self) -> None:
        """Refuse a model whose output for an input depends on chance, on its batch or on settings that changed."""
        for device in {"cpu", self.device.type}:
            if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                raise ModelError(
                    f"expected no autocast outside the model, got torch.autocast({device!r}); "
                    "leave it, or enter it in the model's forward, so that it is part of the certified function"
                )
        if arithmetic() != self._arithmetic:
            raise ModelError(
                f"expected torch's precision as when the classifier was made ({self._arithmetic or 'the usual one'}), "
                f"got {arithmetic() or 'the usual one'}; set it first, then make the classifier"
            )
        for name, module in modules_in(self.model):
            where = f"{name or 'model'} ({type(module).__name__})"
            if isinstance(module, FastModel):
                module.check_fixed()
            if getattr(module, "training", False):  # frozen TorchScript, made in eval mode, does not say it
                raise ModelError(f"expected a model in eval mode, got {where} in training mode; call model.eval()")
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
                raise ModelError(
                    f"expected inputs to be treated independently, got {where} without running statistics, "
                    "which mixes the inputs of a batch; use track_running_stats=True"
                )

    @property
    def takes_level(self) -> bool:
        """Whether the model takes a noise level for each row."""
        return takes_level(self.model)

    def scores(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """The model's outputs, (batch, classes). `tau`, (batch,), is passed on if the model takes noise levels."""
        try:
            found = self._run(x, tau)
        except ModelError:
            raise
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"expected {len(x)} inputs of shape {tuple(x.shape[1:])} to fit into memory, "
                f"got: {one_line(error)}; lower batch_size (--batch)"
            ) from error
        except Exception as error:  # the user's code can raise anything
            raise ModelError(
                f"expected a model that takes inputs of shape {tuple(x.shape[1:])}, got {type(error).__name__}: "
                f"{one_line(error)}; {hint_for(x)}"
            ) from error
        return as_scores(found, len(x), self.num_classes, self.outputs).to(x.device)

    def _run(self, x: Tensor, tau: Tensor | None) -> object:
        """The model's outputs. A model that refuses channels-last inputs, as `view` does, then gets contiguous ones."""
        if self._takes_channels_last:
            try:
                return told(self.model, x, tau)
            except RuntimeError as error:
                if x.is_contiguous() or isinstance(error, torch.OutOfMemoryError):
                    raise
        scores = told(self.model, x.contiguous(), tau)
        self._takes_channels_last = False
        return scores

    def labels(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """The leading class of each input, (batch,)."""
        return self._finite_scores(x, tau).argmax(dim=1)

    def _finite_scores(self, x: Tensor, tau: Tensor | None) -> Tensor:
        scores = self.scores(x, tau)
        if not torch.isfinite(scores).all():
            row = int((~torch.isfinite(scores)).any(dim=1).nonzero()[0])
            raise ModelError(
                f"expected finite model outputs, got {scores[row].tolist()[:4]}… for row {row} of a batch; "
                "check the weights and the input range"
            )
        return scores

    def probabilities(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """One probability per class, (batch, classes)."""
        scores = self.scores(x, tau)
        return scores.softmax(dim=1) if self.outputs == "logits" else scores

    def check_answers(self, x: Tensor, tau: Tensor | None = None) -> None:
        """Refuse a model that answers differently when asked twice, or whose rows depend on one another.

        Args:
            x: A batch of distinct inputs, in the one shape and layout in which the model is sampled.
            tau: Their noise levels.
        """
        company = x.clone()
        company[len(x) // 2 :] = 0  # no noise and no contrast: every statistic of the batch changes
        with torch.no_grad():
            answers = self._finite_scores(x, tau)
            again = self.scores(x, tau)
            turned = self.scores(x.flip(0), None if tau is None else tau.flip(0)).flip(0)
            beside = self.scores(company, tau)[: len(x) // 2]
        for other, share, problem, advice in (
            (
                again,
                _SAME_ROW,
                "others when asked twice",
                "call model.eval(), and remove what is random or keeps a state",
            ),
            (turned, _OTHER_ROW, "others in another row of the batch", "let each row depend on its own input alone"),
            (beside, _SAME_ROW, "others beside other inputs", "let each row depend on its own input alone"),
        ):
            close = share * float(answers.abs().max())
            off = (answers[: len(other)] - other).abs().amax(dim=1)
            # Not finite is not close.
            if len(other) and not bool((off <= close).all()):
                row = int((~(off <= close)).nonzero()[0])
                raise ModelError(
                    f"expected the same scores for the same input, got {problem} (row {row}, off by {off[row]:.2g}); "
                    f"{advice}"
                )

    @property
    def fingerprint(self) -> str:
        """A digest of the model's present structure, weights, settings and kind of output.

        Copies of a model have the same fingerprint. It changes with every parameter, buffer, layer and setting in any
        attribute of its modules. It does not change with the code of the model, except for TorchScript and lambdas: if
        code changes, change `identity`.
        """
        digest = hashlib.sha256(f"{self.outputs} {self.num_classes} {self.identity or ''}".encode())
        if self.identity is None and not isinstance(self.model, nn.Module):
            raise ModelError(
                "expected identity='…' for a model that is not a torch.nn.Module, got none; "
                "give a text that identifies it, so that its memory can refuse other models"
            )
        if self._contents is not None:
            digest.update(self._arithmetic.encode())
            digest.update(self._contents.digest(self._name_unknown).encode())
        return digest.hexdigest()

    def _name_unknown(self, place: str, part: object) -> str:
        """What stands for a part that cannot be compared: the user's own name for the model."""
        if self.identity is None:
            raise ModelError(
                "expected a model of parts that a fingerprint can cover, "
                f"got {place} of type {type(part).__qualname__}; "
                "give identity='…', a text that changes whenever the answers do"
            )
        return ""
