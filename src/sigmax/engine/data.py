"""The data are what the model takes: its shape of inputs, and its classes as labels."""

from sigmax.data import ImageSource
from sigmax.errors import DataError
from sigmax.models import ModelCard


def check_data(source: ImageSource, num_classes: int, card: ModelCard | None) -> None:
    """Refuse data of another shape, or whose labels mean other classes than those of the model, as far as both tell.

    Numbers are no names: where the classes of the one are numbered, they are taken for those of the other.
    """
    if card and card.input_shape and source.shape != card.input_shape:
        raise DataError(
            f"{source.name}: expected inputs of shape {card.input_shape}, as the model was trained on, got "
            f"{source.shape}; name its data by --data"
        )
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
