"""Black boxes from ONNX files: the certificates of the same network in torch, and refusals that say what to do."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from commands import Run
from sigmax import AscentSearch, GridSearch, HalvingSearch, SigmaSearch, SmoothedClassifier
from sigmax.errors import ModelError
from sigmax.models import load_model
from sigmax.models.classifier import BaseClassifier
from sigmax.models.onnx import OnnxModel
from sigmax.runs import read_table


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).eval()


def write(
    path: Path,
    model: nn.Sequential | None = None,
    *,
    batch: int | str = "batch",
    classes: int | str = 10,
    dtype: int = TensorProto.FLOAT,
    external: bool = False,
    last: onnx.NodeProto | None = None,
) -> Path:
    """The network as an ONNX file; `last` is one more node, from "scores" to "out"."""
    state = (model or network()).state_dict()
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Gemm", ["flat", "1.weight", "1.bias"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "3.weight", "3.bias"], ["scores"], transB=1),
        last or helper.make_node("Identity", ["scores"], ["out"]),
    ]
    weights = [
        numpy_helper.from_array(tensor.numpy().astype(helper.tensor_dtype_to_np_dtype(dtype)), name)
        for name, tensor in state.items()
    ]
    x = helper.make_tensor_value_info("x", dtype, [batch, 1, 8, 8])
    out = helper.make_tensor_value_info("out", dtype, [batch, classes])
    graph = helper.make_graph(nodes, "network", [x], [out], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10),
        path,
        save_as_external_data=external,
        size_threshold=0,
        location=f"{path.name}.data",
    )
    return path


@pytest.mark.parametrize("batch", ["batch", 1, 48])
def test_scores_are_those_of_the_network(tmp_path: Path, batch: int | str) -> None:
    box = OnnxModel(write(tmp_path / "m.onnx", batch=batch))
    x = torch.rand(64, 8, 8, 1).permute(0, 3, 1, 2)  # channels last, as the sampling loop gives them
    with torch.no_grad():
        torch.testing.assert_close(box(x), network()(x), rtol=1e-5, atol=1e-6)
    assert (box.num_classes, box.input_shape) == (10, (1, 8, 8))
    assert box.batch_size == (None if batch == "batch" else batch)


@pytest.mark.parametrize(
    "search",
    [0.25, HalvingSearch(initial=0.25, pilot=64), GridSearch(initial=0.25, evaluations=20)],
    ids=["fixed", "halving", "grid"],
)
def test_certificates_are_those_of_the_network(tmp_path: Path, search: SigmaSearch | float) -> None:
    box = OnnxModel(write(tmp_path / "m.onnx"))
    x = torch.rand(4, 1, 8, 8)
    found, expected = (
        SmoothedClassifier(model, num_classes=10, sigma=search).certify(x, n=2_000) for model in (box, network())
    )
    for a, b in zip(found, expected, strict=True):
        assert (a.label, a.sigma) == (b.label, b.sigma)
        assert a.p_lower == pytest.approx(b.p_lower, abs=0.002)  # a sample or two on a boundary


def write_aware(path: Path, *, batch: int | str = "batch", rank: int = 1) -> Path:
    """The network plus log tau on its first score, as an ONNX file with two inputs."""
    write(path, batch=batch)
    model = onnx.load(path)
    model.graph.node[-1].CopyFrom(helper.make_node("Add", ["scores", "more"], ["out"]))
    first = numpy_helper.from_array(np.eye(1, 10, dtype=np.float32), "first")
    axes = numpy_helper.from_array(np.array([1]), "axes")
    model.graph.initializer.extend([first, axes])
    for node in (
        helper.make_node("Log", ["tau"], ["log"]),
        helper.make_node("Unsqueeze", ["log", "axes"], ["column"]),
        helper.make_node("MatMul", ["column", "first"], ["more"]),
    ):
        model.graph.node.insert(len(model.graph.node) - 1, node)
    model.graph.input.append(helper.make_tensor_value_info("tau", TensorProto.FLOAT, [batch, 1, 1][:rank]))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("batch", ["batch", 48])
def test_a_file_with_a_second_input_is_told_the_noise_level(tmp_path: Path, batch: int | str) -> None:
    box = OnnxModel(write_aware(tmp_path / "m.onnx", batch=batch))
    x, tau = torch.rand(64, 1, 8, 8), torch.linspace(0.1, 1.0, 64)
    expected = network()(x).detach()
    expected[:, 0] += tau.log()
    torch.testing.assert_close(box(x, tau), expected, rtol=1e-5, atol=1e-5)
    smoothed = SmoothedClassifier(box, num_classes=10, sigma=HalvingSearch(initial=0.25, pilot=32, taus=(1.0,)))
    for found in smoothed.certify(x[:2], n=500):
        assert found.tau == found.sigma
    with pytest.raises(ModelError, match="noise levels"):
        OnnxModel(write_aware(tmp_path / "odd.onnx", rank=2))


def test_a_search_by_gradients_is_refused(tmp_path: Path) -> None:
    smoothed = SmoothedClassifier(
        OnnxModel(write(tmp_path / "m.onnx")), num_classes=10, sigma=AscentSearch(initial=0.25, steps=2)
    )
    with pytest.raises(ModelError, match="halving"):
        smoothed.certify(torch.rand(1, 1, 8, 8), n=10)


def fingerprint(path: Path) -> str:
    box = OnnxModel(path)
    return BaseClassifier(box, num_classes=10, identity=box.identity).fingerprint


def test_the_fingerprint_covers_weights_also_in_a_file_of_their_own(tmp_path: Path) -> None:
    own = fingerprint(write(tmp_path / "a.onnx"))
    assert fingerprint(write(tmp_path / "b.onnx")) == own
    assert fingerprint(write(tmp_path / "c.onnx", network(seed=1))) != own
    beside = write(tmp_path / "d.onnx", external=True)
    assert fingerprint(beside) == fingerprint(write(tmp_path / "e.onnx", external=True))
    apart = fingerprint(beside)
    graph = beside.read_bytes()
    (tmp_path / "d.onnx.data").unlink()
    write(beside, network(seed=1), external=True)
    assert beside.read_bytes() == graph  # other weights under the same graph
    assert fingerprint(beside) != apart
    assert "onnxruntime" in OnnxModel(beside).identity
    assert "CPUExecutionProvider" in OnnxModel(beside).identity


def test_threads_are_those_of_torch(tmp_path: Path) -> None:
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(usual + 1)
        box = OnnxModel(write(tmp_path / "m.onnx"))
    finally:
        torch.set_num_threads(usual)
    assert box._session.get_session_options().intra_op_num_threads == usual + 1


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"dtype": TensorProto.DOUBLE}, r"x: tensor\(double\)"),
    (
        {"last": helper.make_node("RandomNormalLike", ["scores"], ["out"], name="luck")},
        "RandomNormalLike 'luck'",
    ),
    ({"last": helper.make_node("Dropout", ["scores", "", "training"], ["out"])}, "Dropout"),
    (
        {"last": helper.make_node("BatchNormalization", ["scores", *["3.bias"] * 4], ["out"], training_mode=1)},
        "BatchNormalization",
    ),
    (
        {
            "last": helper.make_node(
                "If",
                ["scores"],
                ["out"],
                **{
                    branch: helper.make_graph(
                        [helper.make_node("RandomNormalLike", ["scores"], ["drawn"], name="inner luck")],
                        branch,
                        [],
                        [helper.make_tensor_value_info("drawn", TensorProto.FLOAT, None)],
                    )
                    for branch in ("then_branch", "else_branch")
                },
            )
        },
        "RandomNormalLike 'inner luck'",
    ),
    ({"last": helper.make_node("Softmaximum", ["scores"], ["out"])}, "Softmaximum"),
]


@pytest.mark.parametrize(("change", "says"), REFUSED)
def test_what_cannot_be_certified_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        OnnxModel(write(tmp_path / "m.onnx", **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"not a graph"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"broken\.onnx"):
        load_model(str(tmp_path / "broken.onnx"))


def test_inputs_of_another_shape_or_type_are_refused(tmp_path: Path) -> None:
    classifier = BaseClassifier(OnnxModel(write(tmp_path / "m.onnx")), num_classes=10)
    inputs: list[Tensor] = [torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.float64)]
    for x in inputs:
        with pytest.raises(ModelError, match="shape"):
            classifier.scores(x)


def test_normalisation_belongs_into_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"m\.onnx"):
        load_model(str(write(tmp_path / "m.onnx")), normalize="cifar10")


def test_certify_on_the_command_line(run: Run, tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", last=helper.make_node("Softmax", ["scores"], ["out"]))
    options = ("--max", 3, "--n", 200, "--sigma", 0.25, "--outputs", "probabilities", "--out", tmp_path / "run")
    code, _, err = run("certify", model, *options, "--search", "ascent")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--search halving" in err
    assert run("certify", model, *options, "--search", "halving")[0] == 0
    assert len(read_table(tmp_path / "run")) == 3
    # Another network's certificates do not join the run.
    write(model, network(seed=1))
    code, _, err = run("certify", model, *options, "--search", "halving", "--resume")
    assert code == 2
    assert "fingerprint" in err
    assert "--device" in run("certify", model, *options, "--device", "cpu")[2]
    assert "torch.nn.Module" in run("certify", model, *options, "--backend", "compile")[2]


def test_predict_reads_classes_and_channels_from_the_file(run: Run, tmp_path: Path) -> None:
    from PIL import Image

    model = write(tmp_path / "m.onnx")
    Image.new("RGB", (8, 8), (200, 100, 50)).save(tmp_path / "a.png")
    code, out, err = run("predict", model, tmp_path / "a.png", "--sigma", 0.25, "--json")
    assert (code, err) == (0, "")
    assert '"label"' in out
