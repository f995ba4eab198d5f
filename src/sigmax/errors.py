"""Exceptions, grouped by what the user can do about them.

Every message has the shape `expected <rule>, got <name>=<value>; <what to do>`.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class SigmaxError(Exception):
    """Base of all errors that sigmax raises on purpose."""


class InvalidInputError(SigmaxError, ValueError):
    """An argument or an input to certify is outside its domain."""


class DataError(SigmaxError):
    """A data set is missing, broken or not what was asked for."""


class ModelError(SigmaxError):
    """A model or checkpoint cannot be used for certification."""


class RecordError(SigmaxError):
    """A run folder or certificate table cannot be read, continued or written."""


class MemoryRefusedError(SigmaxError):
    """A certificate memory belongs to another model, is broken or cannot be written."""


class EngineError(SigmaxError):
    """A cluster cannot be used, or a worker failed."""


class TrainingError(SigmaxError):
    """A training cannot go on, or cannot be resumed with these settings."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the most similar known one, if any."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def one_line(error: BaseException) -> str:
    """The message of another library's error in one line, at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def without_password(place: str) -> str:
    """A path or a URL as it may be shown and recorded."""
    place = re.sub(r"^(\w+://[^:/@?#]*):[^?#]*@", r"\1@", place)
    hidden, found = re.subn(r"(?<=[?&])(ssl)?password=[^&#]*&?", "", place)
    return hidden.rstrip("?&") if found else place
