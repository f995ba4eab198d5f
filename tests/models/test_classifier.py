import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import dropout

from sigmax import SmoothedClassifier
from sigmax.errors import InvalidInputError, ModelError
from sigmax.models import BaseClassifier, Normalize, Outputs, build_network, with_normalisation
from sigmax.models.backends import FastModel


def digits_network() -> nn.Module:
    torch.manual_seed(0)
    return build_network("digits-cnn", num_classes=10, in_channels=1).eval()


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(ModelError, match=r"model \(DigitsCNN\)"):
        BaseClassifier(digits_network().train(), num_classes=10)


def test_a_part_in_training_mode_is_named() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 10), nn.Dropout(0.5))).eval()
    model.get_submodule("1.1").train()
    with pytest.raises(ModelError, match=r"1\.1 \(Dropout\)"):
        BaseClassifier(model, num_classes=10)


def test_a_model_that_goes_back_to_training_is_noticed() -> None:
    model = digits_network()
    classifier = BaseClassifier(model, num_classes=10)
    classifier.check_fixed()
    model.train()
    with pytest.raises(ModelError, match="eval"):
        classifier.check_fixed()


def test_batch_norm_that_mixes_the_batch_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten()).eval()
    with pytest.raises(ModelError, match=r"1 \(BatchNorm2d\)"):
        BaseClassifier(model, num_classes=144)
    model[1] = nn.BatchNorm2d(4).eval()
    BaseClassifier(model, num_classes=144)


@pytest.mark.parametrize("num_classes", [-1, 0, 1])
def test_fewer_than_two_classes_are_refused(num_classes: int) -> None:
    with pytest.raises(InvalidInputError, match=f"num_classes={num_classes}"):
        BaseClassifier(digits_network(), num_classes=num_classes)


def test_an_unknown_kind_of_output_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="outputs='scores'"):
        BaseClassifier(digits_network(), num_classes=10, outputs="scores")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "got"),
    [
        (nn.Flatten(), r"\(5, 64\)"),
        (lambda x: x.flatten(1)[:, 0], r"\(5,\)"),
        (lambda x: x.flatten(1)[:4, :10], r"\(4, 10\)"),
        (lambda x: {"logits": x}, "dict"),
    ],
)
def test_outputs_of_another_shape_are_refused(model: Callable[[Tensor], Tensor], got: str) -> None:
    classifier = BaseClassifier(model.eval() if isinstance(model, nn.Module) else model, num_classes=10)
    with pytest.raises(ModelError, match=rf"\(5, 10\), got {got}"):
        classifier.scores(torch.zeros(5, 1, 8, 8))


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 9, 9), (2, 64)])
def test_inputs_that_the_model_does_not_take_are_refused(shape: tuple[int, ...]) -> None:
    classifier = BaseClassifier(digits_network(), num_classes=10)
    with pytest.raises(ModelError) as caught:
        classifier.scores(torch.zeros(*shape))
    assert str(shape[1:]) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_no_class_is_told_from_numbers_that_are_none(bad: float) -> None:
    scores = torch.arange(12.0).reshape(4, 3)
    scores[2, 1] = bad
    classifier = BaseClassifier(lambda x: scores[: len(x)], num_classes=3)
    assert classifier.labels(torch.zeros(2, 1)).tolist() == [2, 2]
    with pytest.raises(ModelError, match=rf"\[6\.0, {bad}, 8\.0\].* row 2"):
        classifier.labels(torch.zeros(4, 1))


@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
def test_what_the_outputs_are_is_said_and_not_guessed(outputs: Outputs) -> None:
    # These rows could be either: they are positive and sum to 1.
    scores = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    classifier = BaseClassifier(lambda _: torch.from_numpy(scores), num_classes=3, outputs=outputs)
    softmax = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    x = torch.zeros(2, 1)
    np.testing.assert_allclose(classifier.probabilities(x), softmax if outputs == "logits" else scores, rtol=1e-12)
    assert classifier.labels(x).tolist() == [0, 2]
    np.testing.assert_array_equal(classifier.scores(x), scores)


def fingerprint(
    model: Callable[[Tensor], Tensor],
    *,
    num_classes: int = 10,
    outputs: Outputs = "logits",
    identity: str | None = None,
) -> str:
    return BaseClassifier(model, num_classes=num_classes, outputs=outputs, identity=identity).fingerprint


def test_equal_models_have_equal_fingerprints() -> None:
    model = digits_network()
    assert fingerprint(model) == fingerprint(copy.deepcopy(model)) == fingerprint(digits_network())
    moved = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert fingerprint(moved) == fingerprint(model)


def test_one_bit_of_one_weight_changes_the_fingerprint() -> None:
    model, twin = digits_network(), digits_network()
    with torch.no_grad():
        bias = twin.get_parameter("head.2.bias")
        bias[3] = torch.nextafter(bias[3], torch.tensor(1.0))
    assert fingerprint(model) != fingerprint(twin)


def test_the_fingerprint_is_that_of_the_weights_now() -> None:
    model = digits_network()
    classifier = BaseClassifier(model, num_classes=10)
    before = classifier.fingerprint
    with torch.no_grad():
        model.get_parameter("head.2.bias").add_(1)
    assert classifier.fingerprint != before


def test_normalisation_and_kind_of_output_change_the_fingerprint() -> None:
    texts = ["none", "0/1", "0.5/1", "0.5/0.2", "0.5/0.20000001"]
    prints = [fingerprint(with_normalisation(digits_network(), Normalize.parse(text)).eval()) for text in texts]
    prints += [fingerprint(digits_network(), outputs=outputs) for outputs in ("logits", "probabilities")]
    prints += [fingerprint(digits_network(), identity="mine")]
    assert len(set(prints)) == len(prints)


def test_a_setting_without_weights_changes_the_fingerprint() -> None:
    slopes = [nn.Sequential(nn.Flatten(), nn.LeakyReLU(slope)).eval() for slope in (0.1, 0.2)]
    assert fingerprint(slopes[0]) != fingerprint(slopes[1])
    eps = [nn.Sequential(nn.BatchNorm2d(1, eps=eps), nn.Flatten()).eval() for eps in (1e-5, 1e-3)]
    assert fingerprint(eps[0]) != fingerprint(eps[1])


class Shift(nn.Module):
    """Keeps a tensor or a number where neither a state dict nor a repr shows it."""

    def __init__(self, shift: float, kind: str) -> None:
        super().__init__()
        self.shift: Tensor | float | list[float] | list[Tensor] | dict[str, float] | NDArray[np.float32]
        if kind == "buffer":
            self.register_buffer("shift", torch.tensor([shift]), persistent=False)
        elif kind == "attribute":  # as in the normalisation layer of Cohen et al.
            self.shift = torch.tensor([shift])
        else:
            kinds: dict[str, Any] = {
                "number": shift,
                "list": [shift, 0.0],
                "tensors": [torch.tensor([shift])],
                "dict": {"by": shift},
                "array": np.array([shift], dtype=np.float32),
            }
            self.shift = kinds[kind]

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.shift, dict):
            return x + self.shift["by"]
        return x + (torch.as_tensor(self.shift[0]) if isinstance(self.shift, list) else torch.as_tensor(self.shift))


@pytest.mark.parametrize("kind", ["buffer", "attribute", "number", "list", "tensors", "dict", "array"])
def test_numbers_beside_the_state_dict_change_the_fingerprint(kind: str) -> None:
    models = [nn.Sequential(Shift(shift, kind), nn.Flatten()).eval() for shift in (0.1, 0.1, 0.2)]
    x = torch.zeros(1, 10)
    assert not torch.equal(models[0](x), models[2](x))
    assert fingerprint(models[0]) == fingerprint(models[1])
    assert fingerprint(models[0]) != fingerprint(models[2])


def test_a_black_box_needs_a_name_of_its_own() -> None:
    def box(x: Tensor) -> Tensor:
        return x

    with pytest.raises(ModelError, match="identity"):
        fingerprint(box)
    assert fingerprint(box, identity="a") == fingerprint(box, identity="a")
    assert fingerprint(box, identity="a") != fingerprint(box, identity="b")
    assert fingerprint(box, identity="a") != fingerprint(box, identity="a", num_classes=11)


def test_the_device_is_that_of_the_weights() -> None:
    with torch.device("meta"):
        model = digits_network()
    assert BaseClassifier(model, num_classes=10).device.type == "meta"
    assert BaseClassifier(lambda x: x, num_classes=10).device == torch.get_default_device()


class Viewing(nn.Module):
    """As many networks are written: `view` takes the usual layout only."""

    def __init__(self, *, is_careful: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6 * 6 * 6, 4)
        self.is_careful = is_careful

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        flat = y.flatten(1) if self.is_careful else y.view(-1, 6 * 6 * 6)
        scores: Tensor = self.head(flat)
        return scores


def test_a_model_that_calls_view_is_certified_like_any_other() -> None:
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    views, flattens = (
        SmoothedClassifier(Viewing(is_careful=is_careful).eval(), num_classes=4, sigma=0.25).certify(x, n=200)
        for is_careful in (False, True)
    )
    assert [c.label for c in views] == [c.label for c in flattens]
    assert [c.p_lower for c in views] == pytest.approx([c.p_lower for c in flattens], abs=0.05)
    classifier = BaseClassifier(Viewing(is_careful=False).eval(), num_classes=4)
    with pytest.raises(ModelError, match=r"\(5, 8, 8\)"):
        classifier.scores(torch.rand(2, 8, 8, 5).permute(0, 3, 1, 2))


def test_the_backend_is_named_where_it_is_known() -> None:
    assert BaseClassifier(nn.Identity().eval(), num_classes=2).backend == f"torch {torch.__version__}"
    assert BaseClassifier(FastModel(nn.Identity().eval(), nn.Identity(), "mine 1"), num_classes=2).backend == "mine 1"
    assert BaseClassifier(lambda x: x, num_classes=2).backend is None


class Ensemble(nn.Module):
    """Holds another module where torch does not look for it."""

    def __init__(self, held: object, member: nn.Module) -> None:
        super().__init__()
        self.held = held
        object.__setattr__(self, "member", member)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.__dict__["member"](x)
        return scores


@dataclass
class Box:
    """A plain object around a module."""

    module: nn.Module


@dataclass(slots=True)
class Slotted:
    """The same in a slot."""

    module: nn.Module


def run_module(x: Tensor, module: nn.Module) -> Tensor:
    scores: Tensor = module(x)
    return scores


def closure_over(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: -module(x)


HOLDERS: dict[str, Callable[[nn.Module], object]] = {
    "list": lambda module: [module],
    "nested": lambda module: {"all": ([module],)},
    "set": lambda module: {module, nn.Flatten().eval()},
    "dataclass": Box,
    "slots": Slotted,
    "partial": lambda module: partial(run_module, module=module),
    "closure": closure_over,
    "method": lambda module: module.forward,
    "nothing": lambda _: None,  # only in the dict of the ensemble
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=list(HOLDERS))
def test_modules_in_any_attribute_count(holder: Callable[[nn.Module], object]) -> None:
    def ensemble(shift: float) -> nn.Module:
        member = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), Shift(shift, "number")).eval()
        nn.init.ones_(member.get_parameter("1.weight"))
        nn.init.zeros_(member.get_parameter("1.bias"))
        return Ensemble(holder(member), member).eval()

    one, same, other = ensemble(0.1), ensemble(0.1), ensemble(0.2)
    assert fingerprint(one, num_classes=2) == fingerprint(same, num_classes=2)
    assert fingerprint(one, num_classes=2) != fingerprint(other, num_classes=2)
    classifier = BaseClassifier(one, num_classes=2)
    one.__dict__["member"].train()
    with pytest.raises(ModelError, match="eval"):
        classifier.check_fixed()


@pytest.mark.parametrize("pair", [({1}, {2}), (torch.sin, torch.cos), (Box(nn.ReLU().eval()), Box(nn.GELU().eval()))])
def test_other_attributes_change_the_fingerprint(pair: tuple[object, object]) -> None:
    first, second = (fingerprint(Ensemble(held, nn.Flatten().eval()).eval()) for held in pair)
    assert first != second


def test_a_callable_that_holds_a_module_in_training_mode_is_refused() -> None:
    with pytest.raises(ModelError, match="eval"):
        BaseClassifier(partial(run_module, module=nn.Dropout()), num_classes=2)


def test_a_forward_hook_changes_the_fingerprint() -> None:
    model = digits_network()
    before = fingerprint(model)
    handle = model.register_forward_hook(lambda _module, _inputs, output: -output)
    assert fingerprint(model) != before
    handle.remove()
    assert fingerprint(model) == before


def test_what_cannot_be_compared_needs_a_name_of_its_own() -> None:
    model = Ensemble(threading.Lock(), nn.Flatten().eval()).eval()
    with pytest.raises(ModelError, match=r"held.*identity"):
        fingerprint(model)
    assert fingerprint(model, identity="a") != fingerprint(model, identity="b")


def test_a_module_that_holds_itself_has_a_fingerprint() -> None:
    model = Ensemble([], nn.Flatten().eval()).eval()
    assert isinstance(model.held, list)
    model.held.append(model)
    assert fingerprint(model) == fingerprint(copy.deepcopy(model))


class Scripted(nn.Module):
    """A constant, an attribute and a weight."""

    factor: Final[int]

    def __init__(self, factor: int, shifts: list[float]) -> None:
        super().__init__()
        self.factor, self.shifts = factor, shifts
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.weight * self.factor + self.shifts[0]
        return y


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_told_apart_by_code_constants_and_attributes() -> None:
    def script(factor: int, shift: float) -> nn.Module:
        made: nn.Module = torch.jit.script(Scripted(factor, [shift]).eval())
        return made

    def traced(factor: int) -> nn.Module:
        made: nn.Module = torch.jit.trace(Scripted(factor, [0.0]).eval(), torch.zeros(1, 2))  # type: ignore[no-untyped-call]
        return made

    models = [script(2, 0.5), script(3, 0.5), script(2, 0.7), traced(2), traced(3)]
    models += [torch.jit.freeze(script(2, 0.5)), torch.jit.freeze(script(2, 0.7))]
    prints = [fingerprint(model, num_classes=2) for model in models]
    assert len(set(prints)) == len(prints)
    assert fingerprint(script(2, 0.5), num_classes=2) == prints[0]
    assert fingerprint(copy.deepcopy(models[0]), num_classes=2) == prints[0]
    with pytest.raises(ModelError, match="eval"):
        BaseClassifier(torch.jit.script(Scripted(2, [0.5])), num_classes=2)


def test_autocast_is_refused() -> None:
    smoothed = SmoothedClassifier(digits_network(), num_classes=10, sigma=0.25)
    x = torch.rand(1, 1, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ModelError, match="autocast"):
        smoothed.certify(x, n=10)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ModelError, match="autocast"):
        smoothed.predict(x)
    smoothed.certify(x, n=10)


def test_the_precision_of_products_is_part_of_the_function() -> None:
    model = digits_network()
    usual = BaseClassifier(model, num_classes=10)
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(ModelError, match="medium"):
            usual.check_fixed()
        assert fingerprint(model) != usual.fingerprint
    finally:
        torch.set_float32_matmul_precision("highest")
    usual.check_fixed()


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="before torch 2.9 there is one setting")
def test_the_precision_of_products_counts_in_either_of_the_ways_to_set_it() -> None:
    """When both ways are mixed, torch refuses to read the old setting."""
    model = digits_network()
    usual = BaseClassifier(model, num_classes=10)
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        with pytest.raises(ModelError, match="bf16"):
            usual.check_fixed()
        assert fingerprint(model) != usual.fingerprint
    finally:
        products.fp32_precision = before
    usual.check_fixed()


def mixing(x: Tensor) -> Tensor:
    return (x - x.mean(dim=0)).flatten(1)


def faintly_mixing(x: Tensor) -> Tensor:
    return (x - 1e-4 * x.mean(dim=0)).flatten(1)


def random(x: Tensor) -> Tensor:
    return dropout(x.flatten(1), training=True)


def by_row(x: Tensor) -> Tensor:
    return x.flatten(1) + torch.arange(len(x))[:, None]


@pytest.mark.parametrize(
    ("model", "got"), [(mixing, "beside"), (faintly_mixing, "beside"), (random, "twice"), (by_row, "row of the batch")]
)
def test_a_model_that_is_no_function_of_each_input_is_refused(model: Callable[[Tensor], Tensor], got: str) -> None:
    x = torch.rand(64, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ModelError, match=got):
        BaseClassifier(model, num_classes=12).check_answers(x)


@pytest.mark.parametrize("rows", [1, 2, 3, 64])
def test_every_row_is_asked_in_batches_of_one_shape(rows: int) -> None:
    shapes = set()
    network = digits_network()

    def model(x: Tensor) -> Tensor:
        shapes.add(tuple(x.shape))
        scores: Tensor = network(x)
        return scores

    BaseClassifier(model, num_classes=10).check_answers(torch.rand(rows, 1, 8, 8))
    assert shapes == {(rows, 1, 8, 8)}


def test_a_network_that_is_told_levels_is_asked_with_them_in_order() -> None:
    model = build_network("patch-resnet10-aware", num_classes=10, in_channels=3).eval()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
    BaseClassifier(model, num_classes=10).check_answers(torch.rand(4, 3, 32, 32), torch.tensor([0.1, 0.2, 0.5, 1.0]))
