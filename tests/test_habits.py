"""What people are used to: a loader, a notebook, scikit-learn, transformers, an array of jobs on a cluster.

Each is one person's way of working.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from commands import Run
from records import rows as recorded_rows
from sigmax import CertificateMemory, Certificates, HalvingSearch, SmoothedClassifier
from sigmax.data import load_source
from sigmax.models import load_model


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """A data set as users write them: an image and a whole number."""

    def __init__(self, count: int) -> None:
        source = load_source("digits")
        self.images, self.labels = torch.from_numpy(source.images(range(count))), source.labels[:count].tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.images[i], self.labels[i]


def test_the_loader_user_certifies_settles_and_reads_the_numbers(digits_model: Path) -> None:
    model = load_model(str(digits_model)).model
    g = SmoothedClassifier(model, num_classes=10, sigma=HalvingSearch(initial=0.25), levels=16)
    data = Digits(20)
    found = g.certify(DataLoader(data, batch_size=8), n0=32, n=300)
    assert found == g.certify(data.images, n0=32, n=300)
    assert found.accuracy(0.0) >= 0.7
    assert 0 < found.acr < 2
    with CertificateMemory(norm=2, fingerprint=g.fingerprint) as memory:
        settled = Certificates(memory.settle_many(data.images, found), labels=found.labels)
    assert settled.accuracy(0.25) == found.accuracy(0.25)  # so far apart are digits


_NOTEBOOK = """
import matplotlib
matplotlib.use("Agg")
import torch
from sigmax import SmoothedClassifier

g = SmoothedClassifier(torch.nn.Linear(4, 3).eval(), num_classes=3, sigma=0.25)
found = g.certify((torch.rand(12, 4), torch.arange(12) % 3), n0=8, n=40, progress=True)
print(repr(g))
print(repr(found))
print(found._repr_html_())
axes = found.plot()
print(axes.get_ylabel())
print(found.to_pandas().describe().shape)
"""


def test_the_notebook_user_sees_a_bar_a_table_and_a_curve() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", _NOTEBOOK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "certifying: 100%" in done.stderr
    g, found, html, label, _ = done.stdout.splitlines()
    assert "3 classes" in g
    assert max(len(g), len(found)) < 200
    assert html.count("<tr>") == 11
    assert label == "certified accuracy"


def test_the_sklearn_user_passes_predict_proba() -> None:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    train, test = load_source("digits", split="train"), load_source("digits")
    x = torch.from_numpy(test.images(range(10)).reshape(10, -1))
    rows = train.images(range(600)).reshape(600, -1)
    for model in (LogisticRegression(max_iter=1000), RandomForestClassifier(20, random_state=0)):
        clf = model.fit(rows, train.labels[:600])
        for ask in (clf.predict_proba, clf.predict):
            g = SmoothedClassifier(
                ask, num_classes=10, outputs="probabilities", sigma=HalvingSearch(initial=0.1), identity="digits 1"
            )
            found = g.certify((x, test.labels[:10]), n0=16, n=100)
            assert found.accuracy(0.0) >= 0.5
            clean = np.asarray(clf.predict(x.numpy()))
            assert all(c.label in (None, int(y)) for c, y in zip(found, clean, strict=True) if c.radius > 0.1)
        assert g.fingerprint
    binary = LogisticRegression().fit(rows, train.labels[:600] % 2)
    g = SmoothedClassifier(binary.decision_function, num_classes=2, sigma=0.1)  # one number per input
    assert g.certify((x, test.labels[:10] % 2), n0=16, n=100).accuracy(0.0) >= 0.5


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    """A small vision transformer with random weights, saved as its library saves it."""
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**settings, image_size=16, patch_size=8, num_labels=4)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    said = {"do_resize": True, "size": {"height": 16, "width": 16}, "resample": 2}
    said |= {"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(said))
    return tmp_path / "vit"


def test_the_hugging_face_user_passes_the_model_as_it_is(hub_folder: Path) -> None:
    from transformers import AutoModelForImageClassification

    network: nn.Module = AutoModelForImageClassification.from_pretrained(hub_folder).eval()
    x = torch.rand(3, 3, 16, 16)
    batches = [{"pixel_values": x[:2], "labels": torch.tensor([0, 1])}, {"pixel_values": x[2:], "labels": [2]}]
    found = SmoothedClassifier(network, num_classes=4, sigma=0.25).certify(batches, n0=16, n=100)
    assert found.labels == (0, 1, 2)

    loaded = load_model(f"hf:{hub_folder}")
    assert (loaded.num_classes, loaded.input_shape, loaded.preprocess) == (4, (3, 16, 16), "16x16")
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), network(pixel_values=(x - 0.5) / 0.25).logits)
    one, other = (
        SmoothedClassifier(load_model(f"hf:{hub_folder}").model, num_classes=4, identity=loaded.identity)
        for _ in range(2)
    )
    assert one.fingerprint == other.fingerprint  # a memory knows it again


@pytest.mark.usefixtures("hub_folder")
def test_predict_and_certify_read_the_same_file_alike_and_share_a_memory(
    run: Run, hub_folder: Path, tmp_path: Path
) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    for label in range(4):
        (tmp_path / "data" / str(label)).mkdir(parents=True)
        Image.fromarray(np.roll(pixels, label, axis=2)).save(tmp_path / "data" / str(label) / "photo.png")
    options = ["--sigma", "0.01", "--n0", "16", "--batch", "16", "--memory", tmp_path / "memory.db"]
    model = f"hf:{hub_folder}"
    command = ["certify", model, "--data", f"folder:{tmp_path / 'data'}", "--n", "100", *options]
    code, _, err = run(*command, "--out", tmp_path / "run")
    assert code == 0, err
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert recorded["data"]["preprocess"] == "16x16"
    photo = tmp_path / "data" / "0" / "photo.png"
    code, out, err = run("predict", model, photo, *options, "--n", "100", "--json")
    assert code == 0, err
    (answer,) = json.loads(out)
    assert answer["is_recalled"] or answer["label"] is None
    assert (tmp_path / "run" / "certificates.tsv").exists()


def test_the_cluster_user_runs_an_array_of_jobs_one_of_which_is_killed(
    run: Run, digits_model: Path, tmp_path: Path
) -> None:
    command = ["certify", digits_model, "--data", "digits", "--per-input", "--n0", 16, "--n", 100]
    command += ["--max", 40, "--batch", 16]
    places = [tmp_path / f"job-{number}" for number in (1, 2, 3)]
    for number, place in enumerate(places, start=1):  # the number of a job of the array
        code, _, err = run(*command, "--shard", f"{number}/3", "--out", place)
        assert code == 0, err
    table = places[1] / "certificates.tsv"
    table.write_bytes(table.read_bytes()[:-40])  # this job was killed while it wrote
    code, _, err = run("merge", *places, "--out", tmp_path / "merged")
    assert code == 2
    assert "--resume" in err
    assert run(*command, "--shard", "2/3", "--out", places[1], "--resume")[0] == 0
    code, said, err = run("merge", *places, "--out", tmp_path / "merged")
    assert code == 0, err
    assert "settled" in said
    assert run(*command, "--out", tmp_path / "whole")[0] == 0
    assert recorded_rows(tmp_path / "merged") == recorded_rows(tmp_path / "whole")  # to the byte, but for the times
    assert run("memory", "check", tmp_path / "merged")[0] == 0


def test_a_model_that_is_not_on_the_hub_is_named(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    code, _, err = run("certify", f"hf:{tmp_path}", "--sigma", "0.25")
    assert code == 2
    assert "expected hf:" in err
