"""How tests call the command line in this process."""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

import pytest

from sigmax.cli import main

# Arguments -> exit code, stdout, stderr.
Run = Callable[..., tuple[int, str, str]]


def call(*arguments: object) -> tuple[int, str, str]:
    """Run a command line in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["sigmax", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
    return int(stop.value.code or 0), out.getvalue(), err.getvalue()
