"""The labels of the data are the classes of the model."""

from sigmax.data import ImageSource
from sigmax.errors import DataError
from sigmax.models import ModelCard


def check_classes(source: ImageSource, num_classes: int, card: ModelCard | None) -> None:
    """Refuse data whose labels mean other classes than those of the model, as far as both tell.

    Numbers are no names: data whose classes are numbered are taken at their word.
    """
    ours, theirs = source.class_names, card.class_names if card else ()
    if len(ours) > num_classes:
        raise DataError(f"{source.name}: expected at most the {num_classes} classes of the model, got {len(ours)}")
    if _has_names(ours) and _has_names(theirs):
        if ours != theirs[: len(ours)]:
            raise DataError(
                f"{source.name}: expected classes as the model names them, {_few(theirs)}, got {_few(ours)}; name all "
                "of them alike and in the same order, or number them"
            )
    elif source.needs_all_classes and len(ours) != num_classes:
        raise DataError(
            f"{source.name}: expected a folder for each of the model's {num_classes} classes, got {len(ours)}, whose "
            "places in the alphabet are no labels; name the folders by class number"
        )


def _has_names(classes: tuple[str, ...]) -> bool:
    return not all(name.isdecimal() for name in classes)


def _few(names: tuple[str, ...], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
