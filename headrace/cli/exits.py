"""Exit codes, and errors as a person sees them."""

import os
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.errors import HeadraceError

ENV_DEBUG = "HEADRACE_DEBUG"

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNHEARD = 3
EXIT_TOO_LATE = 4
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def exit_code_of(error: BaseException) -> int:
    """What a command ends with when this error ends it."""
    from schemas.errors import RequestError, SettingsError

    return EXIT_USAGE if isinstance(error, SettingsError | RequestError) else EXIT_FAILED


def report(error: BaseException) -> None:
    """Say on stderr what is wrong: one line for our own errors, since they name the remedy, and for the system's.

    Any other error is a fault of ours: it says how to see more. Both come with a traceback where that was asked for.
    """
    from rich.console import Console
    from rich.text import Text

    from schemas.errors import HeadraceError

    if is_debug():
        traceback.print_exception(error)
    if isinstance(error, HeadraceError):
        message = _with_place(error)
    elif isinstance(error, OSError) and error.strerror:  # a full disk, a folder of another user
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        message = f"{type(error).__name__}: {error} (a fault of headrace; --debug shows where)"
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def _with_place(error: "HeadraceError") -> str:
    # A place inside a field is nothing that the person has typed: without it nobody finds the fault.
    is_told = error.param is None or "." not in error.param or error.param in error.message
    return error.message if is_told else f"{error.message} (in {error.param})"


def is_debug() -> bool:
    """Whether tracebacks and all log lines are wanted."""
    return os.environ.get(ENV_DEBUG, "") not in ("", "0")


def set_debug(value: bool) -> None:  # noqa: FBT001 (the form that typer calls)
    """Callback of `--debug`: this process and its children."""
    if value:
        os.environ[ENV_DEBUG] = "1"
