"""`headrace version`."""

import platform

import typer

from headrace import __version__
from headrace.cli.options import JsonOption


def version(as_json: JsonOption = False) -> None:
    """Show the version.

    [dim]headrace version
    headrace version --json[/dim]
    """
    if as_json:
        import json

        typer.echo(json.dumps({"headrace": __version__, "python": platform.python_version()}))
    else:
        typer.echo(f"headrace {__version__} (Python {platform.python_version()}, {platform.system()})")
