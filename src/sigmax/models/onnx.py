"""A network in an ONNX file, run by ONNX Runtime without gradients."""

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from sigmax.errors import ModelError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import FunctionProto, GraphProto, NodeProto

_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}


@final
class OnnxModel:
    """The function in an ONNX file, from float32 inputs (batch, …) to one score per class.

    A second input (batch,) is the noise level of each row: the network is noise-aware.

    Args:
        path: The file. External weights are read too.

    Attributes:
        identity: Digest of graph and weights, with the runtime's version, for `SmoothedClassifier(identity=…)`.
        num_classes: Scores per input; None if the file leaves it open.
        input_shape: Shape of one input; None if the file leaves a part of it open.
        batch_size: The only batch size that it takes; None if it takes any. Other batches are split and padded.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnx
            import onnxruntime
        except ImportError:
            raise ModelError("expected onnxruntime to be installed, got none; pip install 'sigmax[onnx]'") from None
        try:
            graph = onnx.load(path)
        except Exception as error:  # a broken file can raise anything
            raise ModelError(f"{path}: expected a whole ONNX file, got: {one_line(error)}") from error
        for node in _all_nodes(graph.graph, *graph.functions):
            if _is_stochastic(node):
                raise ModelError(
                    f"{path}: expected a deterministic model that treats inputs independently, "
                    f"got {node.op_type} {node.name!r}; export it in eval mode"
                )
        content = graph.SerializeToString(deterministic=True)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        settings.log_severity_level = 3  # errors only: the user cannot fix what it warns about
        providers = onnxruntime.get_available_providers()
        try:
            self._session = onnxruntime.InferenceSession(content, settings, providers=providers)
        except Exception as error:  # so can a broken graph
            raise ModelError(f"{path}: expected a model that onnxruntime can run, got: {one_line(error)}") from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        are_floats = {i.type for i in inputs} == {"tensor(float)"}
        has_levels = [len(i.shape) for i in inputs[1:]] == [1]
        if not are_floats or (inputs[1:] and not has_levels) or [len(o.shape) for o in outputs] != [2]:
            got = ", ".join(f"{value.name}: {value.type} {value.shape}" for value in (*inputs, *outputs))
            raise ModelError(
                f"{path}: expected one float32 input, or also the noise levels (batch,) of a noise-aware network, "
                f"and one output (batch, classes), got {got}"
            )
        (batch, *dims), (_, classes) = inputs[0].shape, outputs[0].shape
        self.batch_size: int | None = batch if isinstance(batch, int) else None
        self.input_shape: tuple[int, ...] | None = tuple(dims) if all(isinstance(d, int) for d in dims) else None
        self.num_classes: int | None = classes if isinstance(classes, int) else None
        runner = f"onnxruntime {onnxruntime.__version__} {' '.join(self._session.get_providers())}"
        self.identity = f"onnx {sha256(content).hexdigest()} {runner}"
        self.takes_level = has_levels
        self._inputs = [i.name for i in inputs]

    def __call__(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """The scores, (batch, classes). A noise-aware network is told tau, (batch,)."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise ModelError(
                "expected a search without gradients for an ONNX model, got one with gradients; "
                "use --search halving (HalvingSearch), --search grid or one sigma for all"
            )
        rows = self.batch_size or len(x)
        inputs = [torch.split(one, rows) for one in (x, tau) if one is not None]
        return torch.cat([self._run(rows, *parts) for parts in zip(*inputs, strict=True)]).to(x.device)

    def _run(self, rows: int, *inputs: Tensor) -> Tensor:
        missing = rows - len(inputs[0])
        batch = [pad(one, (0, 0) * (one.ndim - 1) + (0, missing), value=1.0) if missing else one for one in inputs]
        arrays = [one.detach().cpu().contiguous().numpy() for one in batch]
        try:
            (scores,) = self._session.run(None, dict(zip(self._inputs, arrays, strict=True)))
        except Exception as error:  # its errors derive from Exception directly
            raise RuntimeError(one_line(error)) from error
        return torch.from_numpy(scores)[: len(inputs[0])]


def _all_nodes(*graphs: "GraphProto | FunctionProto") -> "Iterator[NodeProto]":
    """The nodes of these graphs and of their subgraphs: branches and bodies of loops."""
    for graph in graphs:
        for node in graph.node:
            yield node
            for field in node.attribute:
                yield from _all_nodes(*([field.g] if field.HasField("g") else []), *field.graphs)


def _is_stochastic(node: "NodeProto") -> bool:
    """Whether it is random or in training mode, which is an attribute of batch norm and an input of dropout."""
    is_training = any(field.name == "training_mode" and field.i for field in node.attribute)
    return is_training or node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) > 2)
