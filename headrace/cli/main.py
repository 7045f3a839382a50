"""The entry point of `headrace`: all verbs, and how every error ends."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from headrace.cli import bench, cancel, chat, config, demo, doctor, generate, serve, tail, topics, up, version
from headrace.cli.exits import EXIT_INTERRUPTED, exit_code_of, report
from headrace.cli.help import command

app = typer.Typer(
    name="headrace",
    help="LLM inference that runs on a log: requests and tokens are records on Kafka.",
    epilog=(
        "Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted. "
        "Settings: defaults, headrace.toml, HEADRACE_SECTION__KEY, --set section.key=value; the last one wins."
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
command(app, "demo")(demo.demo)
command(app, "up")(up.up)
command(app, "chat")(chat.chat)
command(app, "tail")(tail.tail)
command(app, "cancel")(cancel.cancel)
app.add_typer(serve.app, name="serve")
app.add_typer(topics.app, name="topics")
app.add_typer(config.app, name="config")
command(app, "generate")(generate.generate)
app.add_typer(bench.app, name="bench")
command(app, "doctor")(doctor.doctor)
command(app, "version")(version.version)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Errors are one line on stderr, with a traceback only if asked for."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        _never_fail_on_a_character(stream)
    try:
        try:
            app(args=arguments, prog_name="headrace")
        finally:
            _write_out()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 (the outermost place: whatever it is, it is reported and ends in a code)
        report(error)
        return exit_code_of(error)
    return 0


def _open_what_is_closed() -> None:
    """A stream that the caller has closed (`>&-`) leads nowhere; no file or socket of ours must take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (open as long as the process)


def _write_out() -> None:
    """Let a full disk be an error of the command, and not of the interpreter that ends (exit code 120)."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise


def _never_fail_on_a_character(stream: Any) -> None:
    """A terminal that knows no emoji shows a mark in its place, instead of ending the stream with an error."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
