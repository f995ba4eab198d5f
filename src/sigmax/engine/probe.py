"""The fastest batch size of a model on this machine, measured once and cached.

A run keeps one batch size, because kernels may differ in the last bits from shape to shape. So the first result stays
until the model, the device, the number of threads or torch changes.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from sigmax.errors import InvalidInputError
from sigmax.files import cache_folder, write_atomically
from sigmax.models.classifier import BaseClassifier
from sigmax.sampling import sample_buffer

CACHE = "batch-sizes.json"
MEMORY_LIMIT = 2**30  # bytes for all activations of a forward pass
_TRIED = (16, 32, 64, 128, 256, 512, 1024)
_SECONDS = 0.1  # minimum time to measure each of them
_CLOSE = 1.03  # a smaller batch may be this much slower: it wastes less when an input stops early


def fastest_batch(
    classifier: BaseClassifier, shape: tuple[int, ...], *, memory_limit: int = MEMORY_LIMIT, cache: Path | None = None
) -> int:
    """The batch size with the most samples per second whose activations fit into memory.

    The smallest batch may need more than `memory_limit` bytes. `cache` is the file of earlier results.
    """
    if memory_limit < 1:
        raise InvalidInputError(f"expected memory_limit >= 1 byte, got memory_limit={memory_limit}")
    cache = cache or cache_folder() / CACHE
    found = _read(cache)
    key = _key(classifier, shape, memory_limit)
    if key not in found:
        found = _read(cache) | {key: _probe(classifier, shape, memory_limit)}
        with suppress(OSError):  # without the cache, the next run only measures again
            write_atomically(cache, (json.dumps(found, indent=2, sort_keys=True) + "\n").encode())
    return found[key]


def _probe(classifier: BaseClassifier, shape: tuple[int, ...], memory_limit: int) -> int:
    # From its own generator: the user's random numbers stay as they are.
    stream = torch.Generator(classifier.device).manual_seed(0)
    x = torch.rand(1, *shape, device=classifier.device, generator=stream)
    with _unchanged(classifier.model), torch.no_grad():
        most = memory_limit // max(1, _activation_bytes(classifier, x))
        seconds = {size: _seconds_per_sample(classifier, x, size) for size in _TRIED if size <= max(most, _TRIED[0])}
    return min(size for size, taken in seconds.items() if taken <= _CLOSE * min(seconds.values()))


@contextmanager
def _unchanged(model: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Restore module attributes changed by probing, which would change the fingerprint."""
    before = [(module, dict(vars(module))) for module in (model.modules() if isinstance(model, nn.Module) else ())]
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)


def _seconds_per_sample(classifier: BaseClassifier, x: Tensor, rows: int) -> float:
    batch = sample_buffer(x, rows)[-1]
    level = batch.new_ones(rows)  # any value, for a noise-aware network
    classifier.labels(batch, level).cpu()  # warm up
    passes: list[float] = []
    while sum(passes) < _SECONDS or len(passes) < 2:
        began = time.perf_counter()
        classifier.labels(batch, level).cpu()  # copying waits for the device
        passes.append(time.perf_counter() - began)
    return min(passes) / rows  # the least disturbed


def _activation_bytes(classifier: BaseClassifier, x: Tensor) -> int:
    """Bytes of one input and of all layers' outputs for it: an upper bound, except inside scripted models."""
    sizes = [x.numel() * x.element_size()]

    def measure(module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and not any(module.children()):
            sizes.append(output.numel() * output.element_size())

    with register_module_forward_hook(measure):
        classifier.labels(x, x.new_ones(1))
    return sum(sizes)


def _key(classifier: BaseClassifier, shape: tuple[int, ...], memory_limit: int) -> str:
    place = f"{classifier.device.type} {torch.get_num_threads()} threads, torch {torch.__version__}"
    parts = f"{classifier.fingerprint} {shape} {memory_limit} {place}"
    return blake2b(parts.encode(), digest_size=16).hexdigest()


def _read(cache: Path) -> dict[str, int]:
    try:
        return {str(key): int(size) for key, size in json.loads(cache.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # missing or damaged: it is only a cache
