"""`headrace chat`: one request, or a conversation."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import ConfigOption, DebugOption, JsonOption, SessionOption, SetOption, TimeoutOption, load

if TYPE_CHECKING:
    from headrace.client import TokenStream
    from schemas.settings import Settings


def chat(
    text: Annotated[
        str | None, typer.Argument(help="What to ask. Without it: a conversation, or stdin if piped.")
    ] = None,
    *,
    session: SessionOption = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="One of the served models.")] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message before it.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="The longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, max=2, help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Makes the answer repeatable.")] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Show the answer as it is made.")] = True,
    timeout: TimeoutOption = 120.0,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Ask a model, and see the answer as it is made. Without a text, a conversation.

    With `--json`, each delta is a line on stdout, and the result is the last one (`--no-stream`: the only one).

    [dim]headrace chat "Why is the sky blue?"
    headrace chat "And at night?" --session sky --max-tokens 60
    cat notes.txt | headrace chat --system "Summarise." --temperature 0
    headrace chat "Hi" --json --no-stream | jq .usage[/dim]

    Exit codes: 0 answered, 1 failed, 2 wrong usage or settings, 130 interrupted.
    """
    import asyncio

    settings = load(config, set_).settings
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    if text is None and sys.stdin.isatty():
        if as_json:
            raise typer.BadParameter("a conversation has no --json: give a text")
        from headrace.cli.conversation import converse

        asyncio.run(converse(settings, session, model=model, system=system, timeout_s=timeout, options=options))
        return
    asked = sys.stdin.read() if text in (None, "-") else text
    if not asked or not asked.strip():
        raise typer.BadParameter("there is nothing to ask")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": asked})
    arguments = {"session": session, "model": model, "timeout_s": timeout, **options}
    asyncio.run(_ask(settings, messages, arguments, stream=stream, as_json=as_json))


async def _ask(
    settings: "Settings", messages: list[dict[str, str]], arguments: dict[str, Any], *, stream: bool, as_json: bool
) -> None:
    from headrace.client import Client

    async with Client(settings) as client:
        answer = client.stream(messages, **arguments)
        if as_json:
            await show_json(answer, with_deltas=stream)
        else:
            await show(answer, is_live=stream)


async def show(answer: "TokenStream", *, is_live: bool = True) -> None:
    """Show a stream on stdout, and its figures on stderr."""
    from headrace.cli.speaker import Speaker, note

    speaker = Speaker(sys.stdout, is_live=is_live)
    try:
        async for delta in answer:
            speaker.say(delta)
    finally:
        speaker.end()
    note(speaker.figures)


async def show_json(answer: "TokenStream", *, with_deltas: bool) -> None:
    """Show a stream as lines of JSON; the result is the last one, also that of a request that failed."""
    from headrace.cli.speaker import print_json_line

    try:
        async for delta in answer:
            if with_deltas:
                print_json_line(delta)
    finally:
        if answer.result is not None:
            print_json_line(answer.result)
