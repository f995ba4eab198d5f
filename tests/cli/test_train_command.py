import json
from dataclasses import replace
from pathlib import Path

import pytest

from commands import Run
from sigmax import Gaussian, Uniform
from sigmax.cli.train import make_recipe
from sigmax.errors import InvalidInputError
from sigmax.models import ModelCard
from sigmax.plain import from_plain
from sigmax.train import ConstantSigma, Recipe, SigmaRange, SigmaTable, presets
from sigmax.train.objectives.smoothadv import SmoothAdv
from sigmax.train.run import read_checkpoint

PRESETS = presets.presets()


def train(run: Run, out: Path, *more: object) -> tuple[int, str, str]:
    return run("train", "digits", "--epochs", 2, "--out", out, *more)


def settings(out: Path) -> dict[str, object]:
    recipe = read_checkpoint(out / "checkpoint.pt")["recipe"]
    assert isinstance(recipe, dict)
    return recipe


def test_train_then_the_command_it_proposes(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, said, log = train(run, out, "--sigma", 0.25)
    assert code == 0, log
    assert "epoch 2/2" in log
    assert "held-out accuracy under one draw of noise: 0." in said
    proposed = next(line for line in said.splitlines() if line.startswith("next:"))
    assert proposed.split()[1:4] == ["sigmax", "certify", str(out)]
    code, said, log = run(*proposed.split()[2:-4], "--n", 200, "--max", 5, "--out", tmp_path / "certificates")
    assert code == 0, log


def test_options_reach_the_recipe(run: Run, tmp_path: Path) -> None:
    flags = (
        "--sigma 0.5 --method smoothadv -o epsilon=0.5 -o steps=1 --per-input --warmup 1 --search-steps 2 --batch 128"
    )
    more = "--lr 0.02 --schedule cosine --clip 2 --augment crop --norm l1 --seed 3 --weight-decay 0 --ema 0.9 --json"
    code, said, log = train(run, tmp_path / "run", *flags.split(), *more.split())
    assert code == 0, log
    assert json.loads(said)["method"] == "smoothadv-ds2"
    found = settings(tmp_path / "run")
    assert from_plain(Recipe, found) == Recipe(
        arch="digits-cnn",
        sigma=0.5,
        sigma_source=SigmaTable(warmup=1, search_steps=2),
        objective=SmoothAdv(epsilon=0.5, steps=1),
        noise=Uniform(),
        epochs=2,
        batch=128,
        lr=0.02,
        schedule="cosine",
        clip=2.0,
        ema=0.9,
        augment="crop",
        seed=3,
        weight_decay=0.0,
    )
    # A network trained under uniform noise is certified under uniform noise, without being told.
    code, said, log = run("certify", tmp_path / "run", "--n", 200, "--max", 3, "--out", tmp_path / "certificates")
    assert code == 0, log
    assert json.loads((tmp_path / "certificates" / "config.json").read_text())["noise"]["name"] == "uniform"


def test_fine_tuning_takes_over_what_the_network_says(run: Run, tmp_path: Path) -> None:
    assert train(run, tmp_path / "first", "--sigma", 0.3, "--normalize", "0.3/0.4")[0] == 0
    code, _, log = train(run, tmp_path / "second", "--from", tmp_path / "first", "--method", "macer", "-o", "draws=4")
    assert code == 0, log
    found = settings(tmp_path / "second")
    assert (found["sigma"], found["normalize"], found["arch"]) == (0.3, "0.3/0.4", "digits-cnn")


def test_an_unfinished_training_asks_for_resume(run: Run, tmp_path: Path) -> None:
    assert train(run, tmp_path / "run", "--sigma", 0.25)[0] == 0
    code, _, log = train(run, tmp_path / "run", "--sigma", 0.25)
    assert code == 2
    assert "--resume" in log
    assert train(run, tmp_path / "run", "--sigma", 0.25, "--resume")[0] == 0


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("", "--sigma"),
        ("--sigma 0.25 --method cohem", "cohem"),
        ("--sigma 0.25 -o draws", "'draws'"),
        ("--sigma 0.25 -o epsilon=1", "epsilon"),
        ("--sigma 0.25 --preset paper-cifar10-cohen", "digits"),
        ("--sigma 0.25 --preset nothing", "nothing"),
        ("--sigma 0.25 --preset paper-cifar10-choen", "paper-cifar10-cohen?"),
        ("--sigma -1", "sigma=-1"),
        ("--sigma-range 0.5", "--sigma-range"),
        ("--sigma-range -1,2", "-1.0, 2.0"),
        ("--sigma 2 --sigma-range 0.06,1", "sigma=2"),
        ("--sigma 0.25 --noise gausian", "gaussian?"),
        ("--sigma 0.25 --arch nothing", "nothing"),
        ("--from nowhere.safetensors", "nowhere.safetensors"),
        ("--from zoo:nothing", "nothing"),
        ("--sigma 0.25 --precision half", "precision"),
        ("--sigma 0.25 --ema 1", "ema=1"),
        ("--sigma 0.25 --split test", "split='test'"),
        ("--sigma 0.25 -o draws=2.5", "draws"),
        ("--sigma 0.25 --search-steps 5 --warmup 3", "warmup=3, search_steps=5"),
        ("--sigma 0.25 --search-samples 2", "search_samples=2"),
        ("--sigma 0.25 --one-sigma --search-step-size 1", "step_size=1.0"),
        ("--sigma 0.25 --per-input --warmup 5", "warmup=5, epochs=2"),
        ("--sigma 0.25 --device abacus", "abacus"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(run: Run, tmp_path: Path, flags: str, named: str) -> None:
    code, _, log = train(run, tmp_path / "run", *flags.split())
    assert code == 2
    assert named in log
    assert len(log.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_the_name_of_the_data_is_looked_at_first(run: Run, tmp_path: Path) -> None:
    for flags in ((), ("--from", tmp_path / "nowhere.safetensors")):
        code, _, log = run("train", "nodata", "--sigma", 0.25, *flags, "--out", tmp_path / "run")
        assert code == 2
        assert "nodata" in log
        assert "sigma" not in log


def test_presets_are_listed_and_complete(run: Run) -> None:
    for words in ((), ("cifar10",)):
        code, said, _ = run("train", *words, "--preset", "list")
        assert code == 0
        assert all(name in said for name in PRESETS)
    for data in ("cifar10", "imagenet"):
        for method in ("cohen", "smoothadv", "macer") if data == "cifar10" else ("cohen", "smoothadv"):
            for kind in ("", "-ds2"):
                preset = PRESETS[f"paper-{data}-{method}{kind}"]
                assert preset.method == method
                assert preset.sigmas == ((0.12, 0.25, 0.5) if data == "cifar10" else (0.25, 0.5, 1.0))
                assert preset.settings.get("per_input", False) == bool(kind)


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_is_a_recipe(name: str) -> None:
    for sigma in PRESETS[name].sigmas or (0.25,):
        made = presets.make_recipe(PRESETS[name].data, {"sigma": sigma}, preset=name, inherited={})
        assert made.sigma_source.is_per_input == name.endswith("ds2")


def recipe_of(preset: str, sigma: float, **given: object) -> Recipe:
    data = PRESETS[preset].data if preset else "cifar10"
    return make_recipe(data, {"sigma": sigma, **given}, preset=preset or None)[0]


def test_presets_have_the_settings_of_the_paper() -> None:
    for name, preset in PRESETS.items():
        if name.startswith("paper") and not preset.fine_tunes:
            recipe = recipe_of(name, 0.25)
            assert (recipe.optimizer, recipe.schedule) == ("sgd", "step")
            numbers = (recipe.lr, recipe.weight_decay, recipe.batch, recipe.drop_every)
            if preset.method == "macer":
                assert numbers == (0.01, 5e-4, 64, 200)
            else:
                assert numbers == (0.1, 1e-4, 256, 50 if preset.data == "cifar10" else 30)
            assert recipe.arch == ("resnet18" if preset.data == "cifar10" else "resnet50")
            assert recipe.epochs == (200 if preset.data == "cifar10" else 90)
            assert recipe.objective.name == preset.method
    ds2 = SigmaTable(warmup=50, search_steps=1, step_size=1e-4)
    assert recipe_of("paper-cifar10-cohen-ds2", 0.12).sigma_source == ds2
    assert recipe_of("paper-cifar10-macer-ds2", 0.5).sigma_source == replace(ds2, search_samples=8)
    assert recipe_of("paper-cifar10-macer", 0.5).objective.draws == 64
    fine = PRESETS["paper-imagenet-cohen-ds2"]
    assert (fine.settings["epochs"], fine.settings["warmup"], fine.fine_tunes) == (30, 0, True)
    zetas = [recipe_of("paper-imagenet-smoothadv", sigma).objective for sigma in (0.25, 0.5, 1.0)]
    assert [getattr(objective, "epsilon", None) for objective in zetas] == [0.5, 1.0, 1.0]


def test_a_preset_of_per_input_sigma_may_be_used_without() -> None:
    assert recipe_of("paper-cifar10-cohen-ds2", 0.25, per_input=False).sigma_source == ConstantSigma()
    assert recipe_of("paper-cifar10-cohen-ds2", 0.25, warmup=20).sigma_source == SigmaTable(warmup=20)


def test_the_command_line_comes_before_the_network_and_the_network_before_the_preset() -> None:
    card = ModelCard(
        arch="resnet18-aware",
        num_classes=10,
        mean=(0.5, 0.5, 0.5),
        std=(0.2, 0.2, 0.25),
        sigma=0.25,
        sigma_range=(0.06, 1.0),
        noise="uniform",
    )

    def made(**given: object) -> Recipe:
        inherited = presets.decided_by(card)
        return presets.make_recipe("cifar10", given, preset="cpu-cifar10-cohen", inherited=inherited)

    recipe = made()
    assert (recipe.arch, recipe.normalize, recipe.noise) == ("resnet18-aware", "0.5,0.5,0.5/0.2,0.2,0.25", Uniform())
    assert (recipe.sigma, recipe.sigma_source, recipe.epochs) == (0.25, SigmaRange(bounds=(0.06, 1.0)), 19)
    assert made(per_input=True).sigma_source == SigmaTable(bounds=(0.06, 1.0))
    # Sigma and its range are one thing: whoever says one of them says both.
    assert (made(sigma=0.5).sigma, made(sigma=0.5).sigma_source) == (0.5, ConstantSigma())
    assert made(sigma_range=(0.25, 1.0)).sigma == 0.5
    assert made(sigma_range=[0.12, 1.0], sigma=0.5).sigma_source == SigmaRange(bounds=(0.12, 1.0))
    assert made(norm="l2", epochs=3).noise == made(noise="gaussian").noise == Gaussian()
    assert made(norm="l2", epochs=3).epochs == 3


def test_settings_that_nobody_knows_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="epoch="):
        presets.make_recipe("digits", {"sigma": 0.25, "epoch": 3})
    with pytest.raises(InvalidInputError, match="per_input"):
        presets.make_recipe("digits", {"sigma": 0.25, "per_input": "perhaps"})


def test_a_noise_aware_network_starts_from_a_plain_one_by_name() -> None:
    recipe, network = make_recipe(
        "cifar10",
        {"arch": "patch-resnet10-aware", "sigma_range": (0.06, 1.0)},
        start="zoo:cifar10-cohen-0.25",
    )
    assert (recipe.arch, recipe.sigma_source) == ("patch-resnet10-aware", SigmaRange(bounds=(0.06, 1.0)))
    assert not hasattr(network[-1].stem, "film")


def test_another_optimizer_does_not_take_over_the_learning_rate_of_the_default() -> None:
    assert recipe_of("", 0.25).optimizer == "muon"
    other = recipe_of("", 0.25, optimizer="sgd")
    assert (other.lr, other.weight_decay) == (0.1, 5e-4)


def test_another_sigma_than_the_paper_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    recipe_of("paper-cifar10-cohen", 0.3)
    assert "0.12, 0.25, 0.5" in capsys.readouterr().err


def test_an_objective_of_the_users_own(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_loss.py").write_text(
        """
from dataclasses import dataclass
from sigmax.train import Objective, Outcome

@dataclass(frozen=True, kw_only=True)
class Squared(Objective):
    name = "squared"
    draws: int = 1
    power: float = 2.0

    def __call__(self, network, batch):
        logits = batch.logits(network)
        return Outcome(loss=logits.abs().pow(self.power).mean(), logits=logits)
"""
    )
    monkeypatch.chdir(tmp_path)
    code, _, log = train(run, tmp_path / "run", "--sigma", 0.25, "--method", "my_loss:Squared", "-o", "power=3")
    assert code == 0, log
    assert settings(tmp_path / "run")["objective"] == {
        "name": "my_loss:Squared",
        "revision": 1,
        "draws": 1,
        "power": 3.0,
    }


def test_a_preset_that_fine_tunes_needs_a_network(run: Run, tmp_path: Path) -> None:
    arguments = ["train", "cifar10", "--sigma", 0.25, "--preset", "paper-cifar10-smoothadv-ds2"]
    code, _, log = run(*arguments, "--out", tmp_path / "run")
    assert code == 2
    assert "--from NETWORK" in log


def test_a_network_is_never_trained_over(run: Run, digits_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "own"
    out.mkdir()
    kept = digits_model.read_bytes()
    (out / "model.safetensors").write_bytes(kept)
    code, _, err = run("train", "digits", "--sigma", 0.5, "--epochs", 1, "--out", out)
    assert (code, len(err.splitlines())) == (2, 1)
    assert str(out) in err
    assert (out / "model.safetensors").read_bytes() == kept
