"""What `headrace generate` does: load with a sign of life, generate, show."""

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import msgspec
from rich.console import Console

from engine.types import GenerationOutput, GenerationRequest
from headrace.bare import BareModel, with_file
from headrace.cli.speaker import Speaker, note
from headrace.client.delta import Delta
from schemas.envelope import ModelHashes
from schemas.errors import SettingsError
from schemas.results import ResultChoice, Timings
from schemas.sampling import FinishReason, SamplingParams
from schemas.settings import Settings
from schemas.tokens import Usage

_MS_PER_S = 1000


class Generated(msgspec.Struct, kw_only=True, frozen=True):
    """What `--json` writes. `timings` count from the request, without the load."""

    model: str
    hashes: ModelHashes
    choices: list[ResultChoice]
    usage: Usage
    timings: Timings
    load_s: float
    sampling: SamplingParams

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].content


def loaded(settings: Settings, *, model: str | None, gguf: str | None) -> BareModel:
    """The model that the options name, with a spinner on a terminal while it loads.

    Raises:
        SettingsError: no such model is configured, or both options name one.
        ModelFileError: its file is missing, damaged or unsupported.
    """
    if gguf is not None and model is not None:
        raise SettingsError("--gguf is a model of its own: leave --model out")
    if gguf is not None:
        settings = with_file(settings, gguf)
    elif model is not None:
        settings = msgspec.structs.replace(settings, worker=msgspec.structs.replace(settings.worker, model=model))
    waiting = Console(stderr=True).status(f"loading {settings.worker.model}") if sys.stderr.isatty() else nullcontext()
    with waiting:
        return BareModel(settings)


def say(bare: BareModel, fields: Mapping[str, Any], *, is_live: bool) -> None:
    """Show the answer on stdout, and its figures on stderr. Ctrl-C ends it where it is."""
    request = bare.request(fields)
    speaker = Speaker(sys.stdout, is_live=is_live)
    try:
        for output in bare.stream(request):
            speaker.say(_delta(output))
    finally:
        speaker.end()
        note(f"{speaker.figures} · loaded in {bare.load_s:.1f} s")


def say_as_json(bare: BareModel, fields: Mapping[str, Any]) -> None:
    """Write one JSON object when all is said."""
    sys.stdout.write(msgspec.json.encode(generated(bare, bare.request(fields))).decode() + "\n")
    sys.stdout.flush()


def generated(bare: BareModel, request: GenerationRequest) -> Generated:
    """Run a request to its end."""
    started_s = time.monotonic()
    first_s: float | None = None
    choices: dict[int, _Choice] = {}
    for output in bare.stream(request):
        first_s = first_s or time.monotonic()
        choices.setdefault(output.choice, _Choice()).add(output)
    ended_s = time.monotonic()
    num_tokens = sum(len(choice.token_ids) for choice in choices.values())
    num_prompt, num_cached = len(request.prompt_token_ids), min(choice.num_cached for choice in choices.values())
    first_s = first_s or ended_s
    return Generated(
        model=bare.name,
        hashes=bare.model.hashes,
        choices=[choice.as_result(number) for number, choice in sorted(choices.items())],
        usage=Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_tokens,
            total_tokens=num_prompt + num_tokens,
            cached_tokens=num_cached,
        ),
        timings=Timings(
            ttft_ms=(first_s - started_s) * _MS_PER_S,
            total_ms=(ended_s - started_s) * _MS_PER_S,
            tokens_per_s=(num_tokens - len(choices)) / (ended_s - first_s) if ended_s > first_s else None,
        ),
        load_s=bare.load_s,
        sampling=request.sampling,
    )


class _Choice:
    """One answer in the making."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.num_cached = 0
        self._text: list[str] = []
        self._finish_reason: FinishReason = "error"
        self._stop_reason: str | int | None = None

    def add(self, output: GenerationOutput) -> None:
        self.token_ids += output.token_ids
        self.num_cached = output.num_cached_tokens
        self._text.append(output.text)
        if output.finish_reason is not None:
            self._finish_reason, self._stop_reason = output.finish_reason, output.stop_reason

    def as_result(self, index: int) -> ResultChoice:
        return ResultChoice(
            index=index,
            finish_reason=self._finish_reason,
            token_ids=self.token_ids,
            text="".join(self._text),
            stop_reason=self._stop_reason,
        )


def _delta(output: GenerationOutput) -> Delta:
    return Delta(
        request_id=output.request_id,
        index=output.index,
        text=output.text,
        choice=output.choice,
        token_ids=output.token_ids,
        finish_reason=output.finish_reason,
    )
