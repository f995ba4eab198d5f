"""Backends: what runs a network, and on which device.

Backends differ in the last bits, and 8-bit integers in more. So a certificate belongs to its backend, whose name and
version are part of the model's fingerprint.
"""

import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from sigmax.errors import InvalidInputError, ModelError, one_line
from sigmax.models.contents import Contents, Uncompared, arithmetic
from sigmax.models.levels import level_range, nearest_level, takes_level, told

if TYPE_CHECKING:
    import openvino

Backend = Literal["eager", "compile", "openvino", "openvino-int8"]
BACKENDS: dict[Backend, str] = {
    "eager": "PyTorch runs the network as it is",
    "compile": "torch.compile, with frozen weights",
    "openvino": "OpenVINO in 32 bits",
    "openvino-int8": "OpenVINO in 8-bit integers, for images with pixels in [0, 1]; another function near the network",
}

_LEVEL = 0.25  # any noise level will do to try a noise-aware network
_KEPT = 64  # networks that OpenVINO keeps, one for each shape and noise level; another takes a tenth of a second


@final
class FastModel(nn.Module):
    """A network whose outputs come from a backend, and whose gradients come from the network itself.

    Args:
        model: The network.
        runner: The same network in the backend.
        name: Backend and version.
        digest: Digest of the backend's weights, if they differ from those of the network.
        has_own_threads: Whether the backend computes with threads of its own, not with torch's.
    """

    def __init__(
        self,
        model: nn.Module,
        runner: Callable[..., Tensor],
        name: str,
        *,
        digest: str = "",
        has_own_threads: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.backend_name = name
        self.has_own_threads = has_own_threads
        self.digest = digest
        # A compiled runner is a module, and would be listed as a part of this one.
        self._runner = Uncompared(runner)
        self._contents = Uncompared(Contents(model))
        self._built_from = Uncompared(self._stamp())
        self.train(model.training)

    @property
    def takes_level(self) -> bool:
        """Whether the network takes a noise level for each row."""
        return takes_level(self.model)

    @property
    def level_range(self) -> tuple[float, float] | None:
        """The noise levels that the network was trained for."""
        return level_range(self.model)

    def forward(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """The outputs of the backend, or of the network itself where gradients are needed."""
        inputs = (x,) if tau is None else (x, tau)
        if torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
            return self.model(*inputs)  # type: ignore[no-any-return]
        return self._runner.value(*inputs)  # type: ignore[no-any-return]

    def check_fixed(self) -> None:
        """Refuse a network that changed since the backend was built: the backend still has the old one."""
        if self._stamp() != self._built_from.value:
            raise ModelError(
                f"expected the weights and settings that {self.backend_name} was built from, got changed or moved "
                "ones; call accelerate again"
            )

    def _stamp(self) -> str:
        """A digest of all that the backend was built from. Within a process, objects can be told by their ids."""
        digest = self._contents.value.digest(lambda _place, part: str(id(part)))
        return f"{digest} {device_of(self.model)} {arithmetic()}"

    def extra_repr(self) -> str:
        """Show the backend."""
        return f"backend={self.backend_name}" + (f", digest={self.digest}" if self.digest else "")


def device_of(model: nn.Module) -> torch.device:
    """The device of its parameters; the default device for a model without any."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.get_default_device())


def place_model(model: nn.Module, device: str | None) -> None:
    """Move the model to this device; by default to an accelerator if there is one."""
    try:
        place = torch.device(device) if device else torch.accelerator.current_accelerator(check_available=True)
        if place is not None:
            model.to(place)
    except (RuntimeError, AssertionError) as error:
        got = f"device={device}: {one_line(error)}"
        raise InvalidInputError(f"expected a device of this machine, got {got}") from error


def accelerate(model: nn.Module, backend: Backend, *, batch_shape: tuple[int, ...]) -> nn.Module:
    """The model run by this backend, tried on one batch. Its weights must not change afterwards.

    Args:
        model: A network in eval mode.
        backend: One of `BACKENDS`. "eager" returns the model itself; with "openvino-int8" the certified function is
            the one in 8-bit integers.
        batch_shape: The shape of the batches to come. A backend builds any other shape when it first sees it.

    Raises:
        ModelError: The backend is missing or cannot run this model.
    """
    if backend not in BACKENDS:
        raise InvalidInputError(f"expected a backend among {', '.join(BACKENDS)}, got backend={backend!r}")
    if backend == "eager":
        return model
    x = torch.zeros(batch_shape, device=device_of(model))
    if x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)  # the layout of the samples; another one would be compiled again
    try:
        # Backends warn about deprecated calls of their own, which the user cannot fix.
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            if backend == "compile":
                # Frozen weights are constants, laid out once for their kernels.
                compiled = torch.compile(model, dynamic=False, options={"freezing": True})
                fast = FastModel(model, compiled, f"compile torch {torch.__version__}")
            else:
                fast = _openvino(model, batch_shape[1:], backend)
            tau = x.new_full((len(x),), _LEVEL)
            shape = told(fast, x, tau).shape
            expected = told(model, x[:1], tau[:1]).shape[1:]
    except Exception as error:  # a backend can raise anything
        got = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"expected a model that {backend} can run, got {got}; use the eager backend") from error
    if shape != (batch_shape[0], *expected):
        raise ModelError(f"expected {backend} to give {(batch_shape[0], *expected)}, got {tuple(shape)}; use eager")
    return fast


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def _kept_signal_stack() -> Iterator[None]:
    """Restore the stack on which signals are handled.

    OpenVINO installs a stack that lives as long as its network, and restores the previous one afterwards. If networks
    are freed in another order than they were made, that one is freed too, and the next Ctrl-C would crash the process.
    """
    if sys.platform != "linux":
        yield
        return
    libc, usual = ctypes.CDLL(None), _SignalStack()
    libc.sigaltstack(None, ctypes.byref(usual))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(usual), None)


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Send nothing home: OpenVINO and nncf would report their use unless the user opts out."""
    try:
        from openvino_telemetry import main
        from openvino_telemetry.utils.opt_in_checker import ConsentCheckResult
    except ImportError:  # then they cannot send anything
        yield
        return
    checker, sender = main.OptInChecker, main.TelemetrySender
    asked, sent = checker.check, sender.send
    checker.check = lambda *_, **__: ConsentCheckResult.DECLINED  # of a process that did not use them before
    sender.send = lambda *_, **__: None  # of one that did
    try:
        yield
    finally:
        checker.check, sender.send = asked, sent


@_kept_signal_stack()
@_without_telemetry()
def _openvino(model: nn.Module, shape: tuple[int, ...], backend: Backend) -> FastModel:
    try:
        import openvino
    except ImportError:
        raise ModelError("expected openvino to be installed, got none; pip install 'sigmax[openvino]'") from None
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",  # never half precision behind the user's back
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # two processes would be pinned to the same core
    }
    release, _, _ = openvino.__version__.partition("-")  # without the build number
    quantized = None
    if backend == "openvino-int8":
        from sigmax.models.int8 import digest, quantize

        quantized = quantize(partial(_convert, model), shape, level_range(model))

    @cache
    def converted(shape: tuple[int, ...]) -> openvino.Model:
        if quantized is not None:  # once, so that all shapes are one function
            return quantized
        with warnings.catch_warnings(action="ignore"):  # as in accelerate
            return _convert(model, torch.zeros(shape), torch.full(shape[:1], _LEVEL))

    @lru_cache(maxsize=_KEPT)
    @_kept_signal_stack()
    @_without_telemetry()
    def build(shape: tuple[int, ...], level: float | None) -> openvino.InferRequest:
        """The network for batches of this shape. The noise level of all rows is a constant, folded into the weights."""
        fitting = converted(shape).clone()
        if level is not None:
            _, told = fitting.get_parameters()
            constant = openvino.op.Constant(np.array([level], dtype=np.float32)).output(0)
            for use in told.output(0).get_target_inputs():
                use.replace_source_output(constant)
            fitting.remove_parameter(told)
        fitting.reshape(list(shape))
        if fitting.output(0).shape[0] != shape[0]:
            raise ModelError(f"expected a network for any batch, got one for {fitting.output(0).shape[0]} inputs")
        return openvino.Core().compile_model(fitting, "CPU", settings).create_infer_request()

    bounds = level_range(model)

    def run(x: Tensor, tau: Tensor | None = None) -> Tensor:
        """One pass for each level in the batch. So the answer to a row does not depend on the levels of others."""
        if tau is not None and bounds is not None:
            tau = nearest_level(tau, bounds)
        pixels = x.cpu().contiguous().numpy()
        levels = [None] if tau is None else sorted(set(tau.tolist()))
        found = [build(tuple(x.shape), level).infer([pixels], share_inputs=True)[0] for level in levels]
        scores = torch.from_numpy(found[0]).to(x.device)
        for level, other in zip(levels[1:], found[1:], strict=True):
            scores = torch.where((tau == level).unsqueeze(1), torch.from_numpy(other).to(x.device), scores)
        return scores

    weights = digest(quantized) if quantized is not None else ""
    return FastModel(model, run, f"{backend} {release}", digest=weights, has_own_threads=True)


@_without_telemetry()
def _convert(model: nn.Module, *inputs: Tensor) -> "openvino.Model":
    """The network as a graph of OpenVINO, for inputs like these and, if it takes them, noise levels like these."""
    import openvino

    some = tuple(one.to(device_of(model)) for one in inputs)
    return openvino.convert_model(torch.export.export(model, some if takes_level(model) else some[:1]))
