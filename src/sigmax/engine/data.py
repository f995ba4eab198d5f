"""Check that the data fit the model."""

from sigmax.data import ImageSource
from sigmax.errors import DataError
from sigmax.models import ModelCard


def check_data(source: ImageSource, num_classes: int, card: ModelCard | None) -> None:
    """Refuse data whose shape or classes differ from those of the model, as far as both are known.

    Classes named by numbers fit any names.
    """
    if card and card.input_shape and source.shape != card.input_shape:
        raise DataError(
            f"{source.name}: expected inputs of shape {card.input_shape}, as in training, got {source.shape}; "
            "set --data"
        )
    ours, theirs = source.class_names, card.class_names if card else ()
    if len(ours) > num_classes:
        raise DataError(f"{source.name}: expected at most the {num_classes} classes of the model, got {len(ours)}")
    if _has_names(ours) and _has_names(theirs):
        if ours != theirs[: len(ours)]:
            raise DataError(
                f"{source.name}: expected the model's classes {_few(theirs)}, got {_few(ours)}; "
                "use the same names in the same order, or numbers"
            )
    elif source.needs_all_classes and len(ours) != num_classes:
        raise DataError(
            f"{source.name}: expected a folder for each of the model's {num_classes} classes, got {len(ours)}; "
            "name the folders by class number, because alphabetical order cannot identify the classes"
        )


def _has_names(classes: tuple[str, ...]) -> bool:
    return not all(name.isdecimal() for name in classes)


def _few(names: tuple[str, ...], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
