"""Options that several commands have, and the settings and logs that follow from them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.exits import is_debug, set_debug

if TYPE_CHECKING:
    from runtime.config import LoadedSettings

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings in TOML (else HEADRACE_CONFIG, ./headrace.toml)."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting, as in topics.partitions=12; wins over files and variables. Repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout, for programs.")]
DebugOption = Annotated[
    bool, typer.Option("--debug", callback=set_debug, is_eager=True, help="Tracebacks and all log lines.")
]
SessionOption = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="The session that the request belongs to.")
]
ModelOption = Annotated[str | None, typer.Option("--model", metavar="NAME", help="One of the settings' models.")]
GgufOption = Annotated[
    str | None, typer.Option("--gguf", metavar="FILE", help="A model's file instead, or wheel:PACKAGE.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="The longest silence that is waited for.")
]


def load(config: Path | None, overrides: list[str] | None) -> "LoadedSettings":
    """The settings of a command, with the running local stack where no broker is set; logs are set up by them."""
    from headrace.settings import resolve_settings

    loaded = resolve_settings(config, overrides=overrides or [])
    quiet_logs()
    return loaded


def quiet_logs() -> None:
    """Commands speak for themselves: log lines of clients below them are shown with --debug only."""
    from runtime.logging import configure
    from schemas.settings import LoggingSettings

    configure(LoggingSettings(level="debug" if is_debug() else "error", format="console"), role="cli")
    if not is_debug():
        import logging

        # aiokafka logs as errors what it retries, and what it raises as well.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
