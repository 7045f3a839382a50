"""`headrace generate`: the engine alone, without Kafka."""

import sys
from typing import Annotated, Any

import typer

from headrace.cli.form import JsonSchemaOption
from headrace.cli.form import response_format as form_of
from headrace.cli.needs import WORKER_NEEDS, refuse_missing
from headrace.cli.options import ConfigOption, DebugOption, GgufOption, JsonOption, ModelOption, SetOption, load


def generate(
    text: Annotated[str | None, typer.Argument(help="What to ask, or to go on from with --raw. Else stdin.")] = None,
    *,
    model: ModelOption = None,
    gguf: GgufOption = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="A system message before it.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Go on from the text as it is: no chat template.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", min=1, help="The longest answer.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="X", min=0, max=2, help="0 is greedy.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", metavar="X", min=0, max=1, help="The likeliest, up to this sum.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="N", min=0, help="The so many likeliest; 0 is all.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option("--min-p", metavar="X", min=0, max=1, help="At least this share of the best.")
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option("--repetition-penalty", metavar="X", min=0, max=10, help="Above 1: what was said is less likely."),
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option("--presence-penalty", metavar="X", min=-2, max=2, help="As OpenAI.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option("--frequency-penalty", metavar="X", min=-2, max=2, help="As OpenAI.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", min=0, help="Makes the answer repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="Ends the answer. Repeatable.")
    ] = None,
    n: Annotated[int | None, typer.Option("--n", metavar="N", min=1, max=64, help="So many answers.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on to the longest answer.")] = False,
    response_format: Annotated[
        str | None, typer.Option("--response-format", metavar="text|json", help="`json`: the answer is a JSON object.")
    ] = None,
    json_schema: JsonSchemaOption = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Show the answer as it is made.")] = True,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Ask the engine alone: no Kafka, no other process, the same tokens.

    The model is one of the settings, or a GGUF file of the llama family. With `--json`, one object on stdout when all
    is said: answers with their token ids, usage, times.

    [dim]headrace generate "Why is the sky blue?"
    headrace generate "Once upon a time" --raw --temperature 0 --max-tokens 40
    headrace generate "A name" --json-schema name.json --json | jq .choices
    cat notes.txt | headrace generate --system "Summarise." --gguf ./model.gguf[/dim]

    Exit codes: 0 answered, 1 failed, 2 wrong usage or settings, 130 interrupted.
    """
    asked = sys.stdin.read() if text == "-" or (text is None and not sys.stdin.isatty()) else text
    if not asked or not asked.strip():
        raise typer.BadParameter("there is nothing to ask: give a text, or pipe one in")
    if raw and system is not None:
        raise typer.BadParameter("--raw has no messages, so it takes no --system")
    form = form_of(json_schema, response_format)
    refuse_missing("the engine", WORKER_NEEDS, extra="worker")
    fields = (_prompt(asked, system, is_raw=raw)) | {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "seed": seed,
        "stop": stop or None,
        "n": n,
        "ignore_eos": ignore_eos or None,
        "response_format": form,
    }
    from headrace.cli.generation import loaded, say, say_as_json

    bare = loaded(load(config, set_).settings, model=model, gguf=gguf)
    if as_json:
        say_as_json(bare, fields)
    else:
        say(bare, fields, is_live=stream)


def _prompt(asked: str, system: str | None, *, is_raw: bool) -> dict[str, Any]:
    if is_raw:
        return {"prompt": asked}
    messages = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": [*messages, {"role": "user", "content": asked}]}
