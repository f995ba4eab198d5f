"""Where and by what a network runs: on its device, compiled by torch, or by OpenVINO, also in 8-bit integers.

Engines differ in the last bits, and 8-bit integers in more, so a certificate belongs to the engine it was made with:
its name and version are part of the model's fingerprint.
"""

import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from sigmax.errors import InvalidInputError, ModelError, one_line

Backend = Literal["eager", "compile", "openvino", "openvino-int8"]
BACKENDS: tuple[str, ...] = get_args(Backend)


@final
class _Engine:
    """What runs instead of a network. No module, as a compiled one is, so that it is not listed as a part of it."""

    def __init__(self, run: Callable[[Tensor], Tensor], *, built_from: tuple[tuple[int, int], ...]) -> None:
        self.run = run
        self.built_from = built_from


@final
class FastModel(nn.Module):
    """A network whose answers come from another engine, and whose gradients come from itself.

    Args:
        model: The network.
        engine: Its faster form; built anew for each batch shape.
        name: Engine and version.
        digest: Of the numbers that it computes with, where they are not those of the network.
    """

    def __init__(self, model: nn.Module, engine: Callable[[Tensor], Tensor], name: str, *, digest: str = "") -> None:
        super().__init__()
        self.model = model
        self.engine_name = name
        self.digest = digest
        self._engine = _Engine(engine, built_from=_stamp(model))
        self.train(model.training)

    def forward(self, x: Tensor) -> Tensor:
        """The engine's answer; the network's own where it will be differentiated."""
        if torch.is_grad_enabled() and x.requires_grad:
            return self.model(x)  # type: ignore[no-any-return]
        return self._engine.run(x)

    def check_fixed(self) -> None:
        """Refuse to answer for weights that the engine was not built from: it has kept the old ones."""
        if _stamp(self.model) != self._engine.built_from:
            raise ModelError(
                f"expected the weights that {self.engine_name} was built from, got others: they were changed or moved "
                "since; call accelerate again"
            )

    def extra_repr(self) -> str:
        """Show the engine."""
        return f"engine={self.engine_name}" + (f", digest={self.digest}" if self.digest else "")


def _stamp(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Changes whenever torch writes to a weight or a buffer (but not by `.data`), or another takes its place."""
    tensors = (*model.parameters(), *model.buffers())
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)


def device_of(model: nn.Module) -> torch.device:
    """Where its parameters live; the default device for a model without any."""
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.get_default_device())


def place_model(model: nn.Module, device: str | None) -> None:
    """Move the model to this device; by default to an accelerator if there is any."""
    try:
        place = torch.device(device) if device else torch.accelerator.current_accelerator(check_available=True)
        if place is not None:
            model.to(place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"expected a device that is here, got device={device}: {reason}") from error


def accelerate(model: nn.Module, backend: Backend, *, batch_shape: tuple[int, ...]) -> nn.Module:
    """The model behind this engine, tried on a batch of this shape; its weights must not change afterwards.

    Args:
        model: A network in eval mode.
        backend: "eager": the network itself; "compile": compiled by torch, its weights frozen; "openvino": run by
            OpenVINO in 32 bits; "openvino-int8": in 8-bit integers, for images with pixels in [0, 1]. The last is
            another function, close to the network, and the one that is certified.
        batch_shape: Of the batches to come; others take time to build.

    Raises:
        ModelError: The engine is missing or cannot run this model, with what to do.
    """
    if backend not in BACKENDS:
        raise InvalidInputError(f"expected a backend among {', '.join(BACKENDS)}, got backend={backend!r}")
    if backend == "eager":
        return model
    x = torch.zeros(batch_shape, device=device_of(model))
    if x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)  # as the samples come: another layout is compiled anew
    try:
        # The engines' own deprecated calls are not the user's to mend.
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            if backend == "compile":
                fast = _compiled(model)
            else:
                fast = _openvino(model, batch_shape[1:], is_int8=backend == "openvino-int8")
            shape = fast(x).shape
            expected = model(x[:1]).shape[1:]
    except Exception as error:  # an engine can raise anything
        got = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"expected a model that {backend} can run, got {got}; use the eager backend") from error
    if shape != (batch_shape[0], *expected):
        raise ModelError(f"expected {backend} to give {(batch_shape[0], *expected)}, got {tuple(shape)}; use eager")
    return fast


def _compiled(model: nn.Module) -> FastModel:
    # Frozen: the weights are constants, so that they are laid out once for the kernels that use them.
    engine: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False, options={"freezing": True})
    return FastModel(model, engine, f"compile torch {torch.__version__}")


class _SignalStack(ctypes.Structure):
    """stack_t of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def _kept_signal_stack() -> Iterator[None]:
    """Signals go on being handled where they were.

    OpenVINO gives the thread a stack for them that goes with its network; where two networks go in another order than
    they came, one that is gone is put back, and the next signal, as Ctrl-C, would end the process.
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


@_kept_signal_stack()
def _openvino(model: nn.Module, shape: tuple[int, ...], *, is_int8: bool) -> FastModel:
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
    release, _, _ = openvino.__version__.partition("-")  # the rest is its build
    name, found = f"openvino {release}", ""
    if is_int8:
        from sigmax.models.int8 import digest, quantize

        graph = quantize(model, shape, device_of(model))
        name, found = f"openvino-int8 {release}", digest(graph)
    built: dict[tuple[int, ...], openvino.InferRequest] = {}

    @_kept_signal_stack()
    def build(x: Tensor) -> openvino.InferRequest:
        if is_int8:  # ranges are read off once: all shapes are one function
            fitting = graph.clone()
            fitting.reshape(list(x.shape))
            if fitting.output(0).shape[0] != len(x):
                raise ModelError(f"expected a network for any batch, got one for {fitting.output(0).shape[0]} inputs")
        else:
            with warnings.catch_warnings(action="ignore"):  # as above, for a shape that comes later
                fitting = openvino.convert_model(torch.export.export(model, (x,)))
        return openvino.Core().compile_model(fitting, "CPU", settings).create_infer_request()

    def run(x: Tensor) -> Tensor:
        shape = tuple(x.shape)
        if shape not in built:
            built[shape] = build(x)
        outputs = built[shape].infer([x.cpu().contiguous().numpy()], share_inputs=True)
        return torch.from_numpy(outputs[0]).to(x.device)

    return FastModel(model, run, name, digest=found)
