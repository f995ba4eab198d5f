"""Data by name: which images of which data set. A small value that any process can load."""

from dataclasses import dataclass, replace
from typing import Self, final

from sigmax.data import ImageSource, Split, is_of_files, load_source
from sigmax.errors import InvalidInputError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DataReference:
    """Every `skip`-th image of a data set, at most `max` of them.

    Args:
        name: A name for `load_source`, such as "cifar10" or "folder:DIR".
        split: The part of a data set that has several.
        skip: 20 takes the images 0, 20, 40, …
        max: Number of images at most.
        preprocess: How image files are resized and cropped; None: as the model says, else as usual for the data set.
    """

    name: str
    split: Split = "test"
    skip: int = 1
    max: int | None = None
    preprocess: str | None = None

    def __post_init__(self) -> None:
        if self.skip < 1 or (self.max is not None and self.max < 1):
            raise InvalidInputError(f"expected skip >= 1 and max >= 1, got skip={self.skip}, max={self.max}")

    @property
    def kind(self) -> str:
        """The name without a path, such as "cifar10"."""
        return self.name.partition(":")[0]

    def load(self, *, download: bool = False) -> ImageSource:
        """Read the data set; download it if allowed."""
        return load_source(self.name, split=self.split, download=download, preprocess=self.preprocess)

    def suited(self, preprocess: str | None) -> Self:
        """The same with the preprocessing of a model, where it has one and nothing else is said."""
        is_open = self.preprocess is None and is_of_files(self.name)
        return replace(self, preprocess=preprocess) if is_open else self

    def indices(self, size: int) -> list[int]:
        """The indices of the images in a data set of this size."""
        return list(range(0, size, self.skip))[: self.max]
