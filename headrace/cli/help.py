"""Help texts from docstrings: prose flows to the width of the terminal, examples keep their lines."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., Any])

# How a paragraph of examples begins: it is shown faint, line by line.
EXAMPLES = "[dim]"


def command(app: typer.Typer, name: str) -> Callable[[Command], Command]:
    """Register a function as a command, with its docstring as help."""

    def register(function: Command) -> Command:
        app.command(name, help=help_text(function))(function)
        return function

    return register


def help_text(function: Callable[..., Any]) -> str:
    """A docstring as typer should show it: typer itself keeps every line end."""
    paragraphs = inspect.getdoc(function) or ""
    return "\n\n".join(
        paragraph if paragraph.startswith(EXAMPLES) else " ".join(paragraph.split("\n"))
        for paragraph in paragraphs.split("\n\n")
    )
