"""`headrace chat`: one request, or a conversation."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace.cli.exits import EXIT_INTERRUPTED, EXIT_OK
from headrace.cli.form import JsonSchemaOption, response_format
from headrace.cli.options import ConfigOption, DebugOption, JsonOption, SessionOption, SetOption, TimeoutOption, load

if TYPE_CHECKING:
    from headrace.cli.speaker import Speaker
    from headrace.client import TokenStream
    from schemas.results import Result
    from schemas.settings import Settings


def chat(
    text: Annotated[
        str | None, typer.Argument(help="What to ask. Without it: a conversation, or stdin if piped.")
    ] = None,
    *,
    session: SessionOption = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="One of the served models.")] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message before it.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", min=1, help="The longest answer.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="X", min=0, max=2, help="0 is greedy.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", min=0, help="Makes the answer repeatable.")] = None,
    json_schema: JsonSchemaOption = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Show the answer as it is made.")] = True,
    timeout: TimeoutOption = 120.0,
    keep: Annotated[bool, typer.Option("--keep", help="Ctrl-C does not stop the request: it runs on unseen.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Ask a model, and see the answer as it is made. Without a text, a conversation.

    With `--json`, each delta is a line on stdout, and the result is the last one (`--no-stream`: the only one). Ctrl-C
    stops the answer and cancels the request, so that nobody computes what nobody reads; with `--keep` it runs on, and
    `headrace tail` shows it later.

    [dim]headrace chat "Why is the sky blue?"
    headrace chat "And at night?" --session sky --max-tokens 60
    cat notes.txt | headrace chat --system "Summarise." --temperature 0
    headrace chat "Hi" --json --no-stream | jq .usage[/dim]

    Exit codes: 0 answered, 1 failed, 2 wrong usage or settings, 130 interrupted.
    """
    import asyncio

    settings = load(config, set_).settings
    form = response_format(json_schema)
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "response_format": form}
    if text is None and sys.stdin.isatty():
        if as_json:
            raise typer.BadParameter("a conversation has no --json: give a text")
        from headrace.cli.conversation import converse

        talk = converse(settings, session, model=model, system=system, timeout_s=timeout, options=options)
        raise typer.Exit(asyncio.run(talk))
    asked = sys.stdin.read() if text in (None, "-") else text
    if not asked or not asked.strip():
        raise typer.BadParameter("there is nothing to ask")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": asked})
    arguments = {"session": session, "model": model, "timeout_s": timeout, **options}
    how = _How(stream=stream, as_json=as_json, keeps=keep)
    raise typer.Exit(asyncio.run(_ask(settings, messages, arguments, how)))


class _How(NamedTuple):
    """How an answer is shown, and what becomes of the request when that is interrupted."""

    stream: bool
    as_json: bool
    keeps: bool


async def _ask(settings: "Settings", messages: list[dict[str, str]], arguments: dict[str, Any], how: _How) -> int:
    import asyncio

    from headrace.cli.interrupts import on_ctrl_c
    from headrace.cli.stopping import Stopper
    from headrace.client import Client
    from schemas.errors import RequestFailed

    async with Client(settings) as client:
        answer = client.stream(messages, **arguments)
        stopper = Stopper(client, answer, arguments["session"], keeps=how.keeps)
        if how.as_json:
            shown = show_json(answer, with_deltas=how.stream)
        else:
            shown = _show_with_sign_of_life(settings, answer, is_live=how.stream)
        try:
            with on_ctrl_c(stopper.stop):
                await stopper.until_end(asyncio.create_task(shown))
        except RequestFailed as error:
            if not stopper.was_asked or error.result.status != "cancelled":
                raise
        if stopper.was_asked:
            stopper.say()
            return EXIT_INTERRUPTED
    return EXIT_OK


async def _show_with_sign_of_life(settings: "Settings", answer: "TokenStream", *, is_live: bool) -> None:
    from headrace.cli.waiting import sign_of_life

    async with sign_of_life(settings) as waiting:
        await show(answer, is_live=is_live, on_delta=waiting.clear)


async def show(answer: "TokenStream", *, is_live: bool = True, on_delta: Callable[[], None] = lambda: None) -> None:
    """Show a stream on stdout, and its figures on stderr. Raises RequestFailed also where it was cancelled."""
    from headrace.cli.speaker import note

    note((await _spoken(answer, is_live=is_live, on_delta=on_delta)).figures)


async def show_read(settings: "Settings", answer: "TokenStream") -> None:
    """Show a stream that may have been written long ago: its tokens are counted, and no time of this reader is told."""
    from headrace.cli.speaker import note
    from headrace.cli.waiting import sign_of_life

    async with sign_of_life(settings) as waiting:
        speaker = await _spoken(answer, is_live=True, on_delta=waiting.clear)
    note(figures_of_reading(speaker.num_tokens, answer.result))


def figures_of_reading(num_tokens: int, result: "Result | None") -> str:
    """How many tokens were read, and of how many."""
    return f"{num_tokens} tokens" if result is None else f"{num_tokens} of {result.usage.completion_tokens} tokens"


async def _spoken(answer: "TokenStream", *, is_live: bool, on_delta: Callable[[], None]) -> "Speaker":
    from headrace.cli.speaker import Speaker

    speaker = Speaker(sys.stdout, is_live=is_live)
    async with answer:
        try:
            async for delta in answer:
                on_delta()
                speaker.say(delta)
        finally:
            speaker.end()
    _check(answer)
    return speaker


async def show_json(answer: "TokenStream", *, with_deltas: bool) -> None:
    """Show a stream as lines of JSON; the result is the last one, also that of a request that failed."""
    from headrace.cli.speaker import print_json_line

    async with answer:
        try:
            async for delta in answer:
                if with_deltas:
                    print_json_line(delta)
        finally:
            if answer.result is not None:
                print_json_line(answer.result)
    _check(answer)


def _check(answer: "TokenStream") -> None:
    """A stream ends quietly where its request was cancelled; who did not ask for that must hear of it."""
    from schemas.errors import RequestFailed

    if answer.result is not None and answer.result.status != "completed":
        raise RequestFailed(answer.result)
