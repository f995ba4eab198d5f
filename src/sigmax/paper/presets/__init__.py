"""The experiments that come with this package, each a TOML file."""

from pathlib import Path

from sigmax.errors import InvalidInputError, did_you_mean

_FOLDER = Path(__file__).parent


def presets() -> dict[str, str]:
    """Their names, and what each is."""
    paths = sorted(_FOLDER.glob("*.toml"))
    return {path.stem: path.read_text().splitlines()[0].removeprefix("# ") for path in paths}


def read_file(experiment: str) -> tuple[str, str]:
    """Name and text of an experiment: a preset, or a file of one's own."""
    path = _FOLDER / f"{experiment}.toml" if experiment in presets() else Path(experiment)
    try:
        return path.stem, path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"expected a file or one of {', '.join(presets())}, got {experiment!r}: {error}"
            f"{did_you_mean(experiment, presets())}"
        ) from error
