"""How tests call the command line in this process."""

from collections.abc import Callable

# Arguments -> exit code, stdout, stderr.
Run = Callable[..., tuple[int, str, str]]
