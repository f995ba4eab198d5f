"""Inputs as users have them: tensors, arrays, data sets and loaders, with or without labels."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError, one_line

_READ = 64  # inputs of a data set read at a time
_INPUTS = ("pixel_values", "image", "images", "img", "input", "inputs", "x", "inputs_embeds")
_LABELS = ("labels", "label", "target", "targets", "y")
_WHAT = "tensors or arrays (batch, …), alone or with labels, a Dataset, or a DataLoader"

# (inputs, labels) may also be one tuple of two.
Inputs = Tensor | NDArray[Any] | tuple[Any, Any] | Dataset[Any] | DataLoader[Any] | ImageSource | Iterable[Any]


class LabelledBatch(NamedTuple):
    """Some inputs, and the true class of each if it is known."""

    x: Tensor  # inputs *dims
    labels: list[int] | None


def check_inputs(x: object, indices: Sequence[int] | None) -> tuple[int, ...]:
    """The indices of these inputs, (batch, …); refuses what cannot be certified."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        hint = "divide 8-bit images by 255"
        if isinstance(x, Tensor) and x.is_floating_point():
            hint = "a single input is a batch of one: x[None]"
        elif isinstance(x, Tensor) and x.dtype != torch.uint8:
            hint = "token ids take no noise: certify their embeddings"
        elif isinstance(x, str | bytes | PurePath):
            hint = "read the images first: sigmax.data.load_source, or `sigmax certify` on the command line"
        raise InvalidInputError(f"expected a floating-point tensor (batch, …), got {got}; {hint}")
    if x.dtype not in (torch.float32, torch.float64):
        raise InvalidInputError(f"expected float32 or float64, in which noise is fine enough, got {x.dtype}; x.float()")
    if x[:1].numel() == 0 and len(x):
        raise InvalidInputError(f"expected inputs with at least one number each, got shape {tuple(x.shape)}")
    indices = tuple(range(len(x))) if indices is None else tuple(int(index) for index in indices)
    if len(indices) != len(x):
        raise InvalidInputError(f"expected one index per input, got {len(indices)} for {len(x)} inputs")
    is_finite = torch.isfinite(x).flatten(1).all(dim=1)
    if not is_finite.all():
        first = indices[int((~is_finite).nonzero()[0])]
        raise InvalidInputError(f"expected finite inputs, got NaN or infinity in input {first}; leave it out")
    return indices


def read_batches(inputs: Inputs) -> Iterator[LabelledBatch]:
    """The inputs in batches, as they come."""
    if isinstance(inputs, Tensor | np.ndarray) or _is_pair(inputs):
        yield _batch(inputs)
    elif isinstance(inputs, ImageSource):
        for start in range(0, len(inputs), _READ):
            part = list(range(start, min(start + _READ, len(inputs))))
            yield LabelledBatch(torch.from_numpy(inputs.images(part)), inputs.labels[part].tolist())
    else:
        for batch in _iterate(inputs):
            yield _batch(batch)


def count_inputs(inputs: Inputs) -> int | None:
    """The number of inputs; None if it is unknown before they are read."""
    if _is_pair(inputs):
        inputs = inputs[0]  # type: ignore[index]
    whole = inputs.dataset if isinstance(inputs, DataLoader) else inputs
    if isinstance(inputs, DataLoader) and (inputs.drop_last or inputs.batch_sampler is None):
        return None
    is_sized = isinstance(whole, Tensor | np.ndarray | ImageSource | Dataset) and hasattr(whole, "__len__")
    return len(whole) if is_sized else None  # type: ignore[arg-type]


def regroup(batches: Iterable[LabelledBatch], size: Callable[[Tensor], int]) -> Iterator[LabelledBatch]:
    """The same inputs in groups of one size, found from the first batch: the loader's batch does not matter."""
    kept: LabelledBatch | None = None
    wanted = 0
    for batch in batches:
        if kept is None:
            wanted = size(batch.x)
            kept = batch
        else:
            kept = _joined(kept, batch)
        while len(kept.x) >= wanted:
            yield _part(kept, slice(None, wanted))
            kept = _part(kept, slice(wanted, None))
    if kept is not None and len(kept.x):
        yield kept


@contextmanager
def progress_bar(
    is_shown: bool, total: int | None, on_progress: Callable[[int], None] | None
) -> Iterator[Callable[[int], None] | None]:
    """A progress bar in a terminal or a notebook. It counts samples, and passes the counts on to `on_progress`."""
    if not is_shown:
        yield on_progress
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, desc="certifying", unit=" samples", unit_scale=True) as bar:

        def advance(done: int) -> None:
            bar.update(done)
            if on_progress is not None:
                on_progress(done)

        yield advance


def _iterate(inputs: Any) -> Iterator[Any]:
    """The batches of a loader, or of the loader that reads a data set."""
    if isinstance(inputs, str | bytes | PurePath | Mapping) or callable(inputs):
        check_inputs(inputs, None)
    if isinstance(inputs, Dataset):
        inputs = DataLoader(inputs, batch_size=_READ)
    try:
        yield from inputs
    except TypeError as error:  # not iterable, or made of what cannot be batched
        raise InvalidInputError(
            f"expected {_WHAT}, got {type(inputs).__name__}: {one_line(error)}; "
            "images of other libraries must become tensors first"
        ) from error


def _is_pair(inputs: object) -> bool:
    """Whether it is (inputs, labels), as arrays of one length."""
    if not isinstance(inputs, tuple) or len(inputs) != 2:
        return False
    x, labels = inputs
    is_arrays = isinstance(x, Tensor | np.ndarray) and isinstance(labels, Tensor | np.ndarray | list)
    return is_arrays and np.ndim(labels) == 1


def _batch(batch: Any) -> LabelledBatch:
    """A batch as a loader gives it: inputs alone, (inputs, labels), or a dict of them."""
    if isinstance(batch, Mapping):
        x = next((batch[key] for key in _INPUTS if key in batch), None)
        labels = next((batch[key] for key in _LABELS if key in batch), None)
        if x is None:
            hint = "; token ids take no noise: certify embeddings as inputs_embeds" if "input_ids" in batch else ""
            raise InvalidInputError(f"expected one of {', '.join(_INPUTS)} in a batch, got {', '.join(batch)}{hint}")
    elif isinstance(batch, tuple | list):
        if not 1 <= len(batch) <= 2:
            raise InvalidInputError(f"expected batches (inputs, labels), got {len(batch)} parts; return these two")
        x, labels = batch[0], batch[1] if len(batch) == 2 else None
    else:
        x, labels = batch, None
    if isinstance(x, np.ndarray) and x.dtype != object:
        x = torch.from_numpy(np.ascontiguousarray(x))
    if not isinstance(x, Tensor):
        got = f"a {type(batch).__name__} of {type(x).__name__}" if x is not batch else type(x).__name__
        raise InvalidInputError(f"expected {_WHAT}, got {got}; turn each batch into a tensor first")
    return LabelledBatch(x, None if labels is None else _whole(labels, len(x)))


def _whole(labels: Any, inputs: int) -> list[int]:
    try:
        found = np.asarray(labels)
    except (TypeError, ValueError, RuntimeError) as error:  # in whatever way a thing refuses to be an array
        raise InvalidInputError(
            f"expected one whole number per input as labels, got {type(labels).__name__}; "
            "leave the labels out if there are none"
        ) from error
    if found.dtype.kind not in "iu" or found.shape not in ((inputs,), (inputs, 1)):
        raise InvalidInputError(
            f"expected one whole number per input as labels, got {found.dtype} of shape {found.shape} for {inputs} "
            "inputs; leave the labels out if there are none"
        )
    return [int(label) for label in found.ravel()]


def _joined(first: LabelledBatch, second: LabelledBatch) -> LabelledBatch:
    if (first.labels is None) != (second.labels is None):
        raise InvalidInputError(
            "expected labels in all batches or in none, got both kinds of batches; leave the labels out or add them"
        )
    if first.x.shape[1:] != second.x.shape[1:]:
        raise InvalidInputError(
            f"expected inputs of one shape, got {tuple(first.x.shape[1:])} and {tuple(second.x.shape[1:])}; resize them"
        )
    labels = None if first.labels is None or second.labels is None else first.labels + second.labels
    return LabelledBatch(torch.cat([first.x, second.x]), labels)


def _part(batch: LabelledBatch, part: slice) -> LabelledBatch:
    return LabelledBatch(batch.x[part], None if batch.labels is None else batch.labels[part])
