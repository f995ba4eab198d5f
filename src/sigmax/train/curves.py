"""Curves of a training, through loggers of Lightning Fabric: TensorBoard, CSV, MLflow or Weights & Biases.

All of them write into the folder of the training, and nothing is sent anywhere.
"""

import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, final, get_args

from lightning_fabric.loggers.csv_logs import CSVLogger
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from sigmax.errors import InvalidInputError
from sigmax.plain import to_plain
from sigmax.train.training import StepReport, Training

LogTo = Literal["tensorboard", "csv", "mlflow", "wandb"]
_EVERY = 20  # steps between two points of a curve
_NAMES = ("loss", "noisy_accuracy", "mean_sigma", "learning_rate", "held_out_accuracy")


@contextmanager
def curves(out: Path, training: Training, kind: LogTo) -> Iterator[Callable[[StepReport], None]]:
    """Yield what logs a step: every 20th, and the last of each epoch.

    TensorBoard leaves out points that a killed training wrote after its checkpoint, and has histograms of sigma. The
    others begin a new run or file at each start.
    """
    logger = _make_logger(kind, out, training)

    def draw(report: StepReport) -> None:
        is_epoch_end = report.step % training.examples.steps_per_epoch == 0
        if report.step % _EVERY == 0 or is_epoch_end:
            values = {name: getattr(report, name) for name in _NAMES}
            logger.log_metrics({name: value for name, value in values.items() if value is not None}, report.step)
        if is_epoch_end:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_histogram("sigma", training.sigma.numpy(), report.step)
            logger.save()

    try:
        yield draw
    finally:
        logger.finalize("success")


def _make_logger(kind: LogTo, out: Path, training: Training) -> Logger:
    done = training.steps_done
    if kind == "tensorboard":
        # Files are named by the second they were opened in: without a suffix, a quick restart would overwrite one.
        return TensorBoardLogger(out, kind, version="", purge_step=done + 1, filename_suffix=f".{done}")
    if kind == "csv":
        version = f"from-step-{done}"
        shutil.rmtree(out / kind / version, ignore_errors=True)  # of a start that was killed before its checkpoint
        return CSVLogger(out, kind, version=version)
    recipe = to_plain(training.recipe)
    if kind == "mlflow":
        return _MLflow(out, recipe)
    if kind == "wandb":
        return _WandB(out, recipe)
    raise InvalidInputError(f"expected --log-to to be one of {', '.join(get_args(LogTo))}, got {kind!r}")


class _Tracker(Logger):
    """A logger of an installed package, with the settings of the recipe."""

    name = "sigmax"
    version = None

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """The recipe is logged at the start; there is nothing else."""


@final
class _MLflow(_Tracker):
    """Runs in a database in the folder `mlflow`; `mlflow ui --backend-store-uri sqlite:///…` shows them."""

    def __init__(self, out: Path, recipe: dict[str, Any]) -> None:
        try:
            from mlflow import MlflowClient
        except ImportError:
            raise InvalidInputError("expected mlflow for --log-to mlflow, got none; pip install mlflow") from None
        folder = (out / "mlflow").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        found = self._client.get_experiment_by_name(self.name)
        place = found.experiment_id if found else self._client.create_experiment(self.name, folder.as_uri())
        self._run = self._client.create_run(place, run_name=out.name).info.run_id
        for name, value in recipe.items():
            self._client.log_param(self._run, name, value)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log all values at this step."""
        for name, value in metrics.items():
            self._client.log_metric(self._run, name, value, step=step)

    def finalize(self, status: str) -> None:  # noqa: ARG002 (the interface of Fabric)
        """End the run."""
        self._client.set_terminated(self._run)


@final
class _WandB(_Tracker):
    """An offline run in the folder `wandb`; `wandb sync` uploads it."""

    def __init__(self, out: Path, recipe: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise InvalidInputError("expected wandb for --log-to wandb, got none; pip install wandb") from None
        out.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(project=self.name, name=out.name, dir=out, config=recipe, mode="offline")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log all values at this step."""
        self._run.log(metrics, step=step)

    def finalize(self, status: str) -> None:  # noqa: ARG002 (the interface of Fabric)
        """End the run."""
        self._run.finish()
