"""Black boxes: a network in an ONNX file, run by ONNX Runtime. It answers, and gives no gradients."""

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

    Args:
        path: The file. Weights that it keeps in files of their own are read too.

    Attributes:
        identity: Digest of graph and weights, and what runs them: for `SmoothedClassifier(identity=…)`.
        num_classes: How many scores it gives; None where the file leaves that open.
        input_shape: Of one input; None where the file leaves a part of it open.
        batch_size: The only batch that it takes; None where it takes any. Others are cut and padded to it.
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
            if _is_fickle(node):
                raise ModelError(
                    f"{path}: expected a fixed function, got {node.op_type} {node.name!r}, which answers by chance or "
                    "mixes the inputs of a batch; export the model in eval mode"
                )
        content = graph.SerializeToString(deterministic=True)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        settings.log_severity_level = 3  # errors: what it thinks of a graph is not the user's to mend
        providers = onnxruntime.get_available_providers()
        try:
            self._session = onnxruntime.InferenceSession(content, settings, providers=providers)
        except Exception as error:  # so can a graph
            raise ModelError(f"{path}: expected a model that onnxruntime can run, got: {one_line(error)}") from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if [i.type for i in inputs] != ["tensor(float)"] or len(outputs) != 1 or len(outputs[0].shape) != 2:
            got = ", ".join(f"{value.name}: {value.type} {value.shape}" for value in (*inputs, *outputs))
            raise ModelError(f"{path}: expected one float32 input and one output (batch, classes), got {got}")
        (batch, *dims), (_, classes) = inputs[0].shape, outputs[0].shape
        self.batch_size: int | None = batch if isinstance(batch, int) else None
        self.input_shape: tuple[int, ...] | None = tuple(dims) if all(isinstance(d, int) for d in dims) else None
        self.num_classes: int | None = classes if isinstance(classes, int) else None
        engine = f"onnxruntime {onnxruntime.__version__} {' '.join(self._session.get_providers())}"
        self.identity = f"onnx {sha256(content).hexdigest()} {engine}"
        self._input = inputs[0].name

    def __call__(self, x: Tensor) -> Tensor:
        """The scores, (batch, classes)."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise ModelError(
                "expected a search without gradients for an ONNX model, got one that follows them; "
                "use --search halving (HalvingSearch), --search grid or one sigma for all"
            )
        rows = self.batch_size or len(x)
        return torch.cat([self._run(part, rows) for part in torch.split(x, rows)]).to(x.device)

    def _run(self, x: Tensor, rows: int) -> Tensor:
        missing = rows - len(x)
        batch = pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else x
        try:
            (scores,) = self._session.run(None, {self._input: batch.detach().cpu().contiguous().numpy()})
        except Exception as error:  # its errors are children of Exception itself, which nobody expects of a model
            raise RuntimeError(one_line(error)) from error
        return torch.from_numpy(scores)[: len(x)]


def _all_nodes(*graphs: "GraphProto | FunctionProto") -> "Iterator[NodeProto]":
    """The nodes of the graphs, and of those inside them: branches and bodies of loops."""
    for graph in graphs:
        for node in graph.node:
            yield node
            for field in node.attribute:
                yield from _all_nodes(*([field.g] if field.HasField("g") else []), *field.graphs)


def _is_fickle(node: "NodeProto") -> bool:
    """Whether it draws at random, or is in training mode: an attribute of batch norm, an input of dropout."""
    is_training = any(field.name == "training_mode" and field.i for field in node.attribute)
    return is_training or node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) > 2)
