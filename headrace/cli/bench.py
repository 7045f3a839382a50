"""`headrace bench`: how fast this machine is."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.help import command, help_text
from headrace.cli.needs import WORKER_NEEDS, refuse_missing
from headrace.cli.options import ConfigOption, DebugOption, GgufOption, JsonOption, ModelOption, SetOption, load

if TYPE_CHECKING:
    from collections.abc import Sequence


def group() -> None:
    """Measure what this machine can do."""


app = typer.Typer(no_args_is_help=True, help=help_text(group))


def numbers(text: str) -> "Sequence[int]":
    """Positive numbers with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is no list of numbers above 0, as in 1,8,32")
    return sorted({int(part) for part in parts})


@command(app, "engine")
def engine(
    *,
    batch: Annotated[str, typer.Option("--batch", metavar="N,…", help="Sequences that decode together.")] = "1,8,32",
    context: Annotated[
        str, typer.Option("--context", metavar="TOKENS,…", help="Tokens of each prompt, before the first new one.")
    ] = "128,512",
    steps: Annotated[int, typer.Option("--steps", min=6, help="Decode steps measured for each cell.")] = 24,
    repeats: Annotated[int, typer.Option("--repeats", min=6, help="Prefills measured for each length.")] = 6,
    model: ModelOption = None,
    gguf: GgufOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Measure the engine alone: prefill and decode in tokens/s, by batch and context; step times; memory.

    Each figure is a median with its 95 % interval, after a warm-up. About a minute on two cores with the defaults.
    Other work on this machine shows in the intervals: compare only runs of a quiet one.

    [dim]headrace bench engine
    headrace bench engine --batch 1,4 --context 1024 --set engine.num_threads=1
    headrace bench engine --gguf ./model.gguf --json | jq .decode[/dim]

    Exit codes: 0 measured, 1 failed, 2 wrong usage or settings, 130 interrupted.
    """
    batches, contexts = numbers(batch), numbers(context)
    refuse_missing("the engine", WORKER_NEEDS, extra="worker")
    from headrace.cli.bench_report import print_report, progress_to_stderr
    from headrace.cli.generation import loaded
    from headrace.engine_bench import EngineBench, Shape, fitting_settings

    shape = Shape(batches=batches, contexts=contexts, num_steps=steps, num_prefills=repeats)
    bare = loaded(fitting_settings(load(config, set_).settings, shape), model=model, gguf=gguf)
    bench = EngineBench(bare, shape)
    with progress_to_stderr(bench.num_units) as advance:
        report = bench.run(advance)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        print_report(report)
