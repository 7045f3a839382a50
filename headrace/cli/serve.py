"""`headrace serve`: one process of one role, as production runs it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headrace.cli.exits import is_debug
from headrace.cli.help import command, help_text
from headrace.cli.needs import WORKER_NEEDS, refuse_missing
from headrace.cli.options import ConfigOption, DebugOption, SetOption

if TYPE_CHECKING:
    from runtime.role import Role
    from schemas.settings import LoggingSettings, Settings

# What a role imports beside the base of the package, by the extra that brings it (of the same name as the role).
_NEEDED = {
    "gate": (),
    "pipeline": ("faust", "tokenizers", "jinja2", "numpy", "blake3", "llguidance"),
    "worker": WORKER_NEEDS,
}


def group() -> None:
    """Run one process of one role in the foreground, as production does.

    Each serves /metrics, /healthz and /readyz on 127.0.0.1 (`--set gate.metrics_port=9101`; 0 takes a free port, and
    `gate.metrics_host=0.0.0.0` all addresses). The first SIGTERM or Ctrl-C stops in good order and hands the work
    over, a second one ends at once.

    Exit codes: 0 stopped, 1 failed (start it again), 2 settings that cannot be read, 130 ended at once.
    """


app = typer.Typer(no_args_is_help=True, help=help_text(group))


@command(app, "gate")
def gate(config: ConfigOption = None, set_: SetOption = None, debug: DebugOption = False) -> None:
    """Run a gate: admits requests and keeps the turns of a session in order.

    [dim]headrace serve gate --set kafka.bootstrap_servers=broker:9092 --set gate.metrics_port=9101[/dim]
    """

    def make(settings: "Settings") -> "Role":
        from consumers.gate.role import GateRole

        return GateRole(settings)

    _serve("gate", make, config, set_)


@command(app, "pipeline")
def pipeline(config: ConfigOption = None, set_: SetOption = None, debug: DebugOption = False) -> None:
    """Run a pipeline: context, tokens and batches of admitted requests. Stateless, so start as many as are needed.

    [dim]headrace serve pipeline --config /etc/headrace.toml[/dim]
    """

    def make(settings: "Settings") -> "Role":
        from pipeline.role import PipelineRole

        return PipelineRole(settings)

    _serve("pipeline", make, config, set_)


@command(app, "worker")
def worker(config: ConfigOption = None, set_: SetOption = None, debug: DebugOption = False) -> None:
    """Run a worker: the engine of one model.

    [dim]headrace serve worker --set worker.model=smollm2-135m-instruct --set worker.instance_id=worker-1[/dim]
    """

    def make(settings: "Settings") -> "Role":
        from consumers.worker.role import WorkerRole

        return WorkerRole(settings)

    _serve("worker", make, config, set_)


def _serve(name: str, make: Callable[["Settings"], "Role"], config: Path | None, overrides: list[str] | None) -> None:
    from headrace.settings import resolve_settings
    from runtime.logging import configure
    from runtime.role import run_role

    refuse_missing(f"a {name}", _NEEDED[name], extra=name)
    settings = resolve_settings(config, overrides=overrides or []).settings
    configure(_logging(settings), role=name)
    section = getattr(settings, name)
    run = run_role(make(settings), metrics_host=section.metrics_host, metrics_port=section.metrics_port)
    raise typer.Exit(asyncio.run(run))


def _logging(settings: "Settings") -> "LoggingSettings":
    import msgspec

    return msgspec.structs.replace(settings.logging, level="debug") if is_debug() else settings.logging
