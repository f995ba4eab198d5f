"""The fastest batch for a model here: found by a short measured probe, and remembered.

A run keeps to one batch, because kernels may differ in the last bits from shape to shape. So
the first finding stays, until the model, the device, the threads or torch change.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor, nn

from sigmax.errors import InvalidInputError
from sigmax.files import cache_folder, write_atomically
from sigmax.models.classifier import BaseClassifier
from sigmax.sampling import batch_rows, sample_buffer

CACHE = "batch-sizes.json"
MEMORY_LIMIT = 2**30  # bytes for all activations of a forward pass
_TRIED = (16, 32, 64, 128, 256, 512, 1024)
_SECONDS = 0.1  # for each of them, at least
_CLOSE = 1.03  # a smaller batch is worth so much: it wastes less where an input stops early


def fastest_batch(
    classifier: BaseClassifier,
    shape: tuple[int, ...],
    *,
    memory_limit: int = MEMORY_LIMIT,
    cache: Path | None = None,
) -> int:
    """The batch of the most samples per second whose activations fit into `memory_limit` bytes.

    Args:
        classifier: The model, on its device.
        shape: Of one input.
        memory_limit: Bytes; the smallest batch is taken even where it needs more.
        cache: The file of findings; by default in the user's cache folder.
    """
    if memory_limit < 1:
        raise InvalidInputError(f"expected memory_limit >= 1 byte, got memory_limit={memory_limit}")
    cache = cache or cache_folder() / CACHE
    found = _read(cache)
    key = _key(classifier, shape, memory_limit)
    if key not in found:
        found = _read(cache) | {key: _probe(classifier, shape, memory_limit)}
        with suppress(OSError):  # a folder that cannot be written to costs the next run a probe, no more
            write_atomically(cache, (json.dumps(found, indent=2, sort_keys=True) + "\n").encode())
    return found[key]


def _probe(classifier: BaseClassifier, shape: tuple[int, ...], memory_limit: int) -> int:
    with _unchanged(classifier.model):
        most = memory_limit // max(1, _activation_bytes(classifier, shape))
        sizes = sorted({batch_rows(math.prod(shape), size) for size in _TRIED})
        seconds = {size: _seconds_per_sample(classifier, shape, size) for size in sizes if size <= max(most, sizes[0])}
    return min(size for size, taken in seconds.items() if taken <= _CLOSE * min(seconds.values()))


@contextmanager
def _unchanged(model: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Take away what forward passes leave behind in modules: it would be part of the fingerprint of this run only."""
    before = [(module, dict(vars(module))) for module in (model.modules() if isinstance(model, nn.Module) else ())]
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)


def _an_input(classifier: BaseClassifier, shape: tuple[int, ...]) -> Tensor:
    """Random, without a draw from the random numbers of the user."""
    device = classifier.device
    return torch.rand(1, *shape, device=device, generator=torch.Generator(device).manual_seed(0))


def _seconds_per_sample(classifier: BaseClassifier, shape: tuple[int, ...], rows: int) -> float:
    batch = sample_buffer(_an_input(classifier, shape), rows)[-1]
    passes: list[float] = []
    with torch.no_grad():
        classifier.labels(batch).cpu()  # the first pass sets things up
        while sum(passes) < _SECONDS or len(passes) < 2:
            began = time.perf_counter()
            classifier.labels(batch).cpu()  # on the CPU: only then is it done
            passes.append(time.perf_counter() - began)
    return min(passes) / rows  # the least disturbed


def _activation_bytes(classifier: BaseClassifier, shape: tuple[int, ...]) -> int:
    """What all layers put out for one input: more than is ever kept at once (of a script, which has no hooks, less)."""
    sizes: list[int] = []

    def measure(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    hooks = []
    if isinstance(classifier.model, nn.Module) and not isinstance(classifier.model, torch.jit.ScriptModule):
        leaves = [module for module in classifier.model.modules() if not any(module.children())]
        hooks = [module.register_forward_hook(measure) for module in leaves]
    try:
        x = _an_input(classifier, shape)
        with torch.no_grad():
            classifier.labels(x)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(sizes) + x.numel() * x.element_size()


def _key(classifier: BaseClassifier, shape: tuple[int, ...], memory_limit: int) -> str:
    place = f"{classifier.device.type} {torch.get_num_threads()} threads, torch {torch.__version__}"
    parts = f"{classifier.fingerprint} {shape} {memory_limit} {place}"
    return blake2b(parts.encode(), digest_size=16).hexdigest()


def _read(cache: Path) -> dict[str, int]:
    try:
        return {str(key): int(size) for key, size in json.loads(cache.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # none yet, or damaged: it is only a cache
