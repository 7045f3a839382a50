"""Records for the tests of the worker, with defaults for all that a test does not speak of."""

from typing import Any

import msgspec

from consumers.journal import Progress
from consumers.worker.request import RunningRequest
from engine.types import GenerationOutput
from schemas.batches import Member, Refusal, Sequence
from schemas.envelope import Envelope, ModelHashes
from schemas.errors import UnknownModel
from schemas.sampling import SamplingParams

SOURCE = "batches.m-3"
HASHES = ModelHashes(model="weights", tokenizer="tokenizer", template="template")
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
ACCEPTED_AT_MS = 1_790_000_000_000


def envelope(request_id: str = "r1", **changes: Any) -> Envelope:
    base = Envelope(
        request_id=request_id,
        key=request_id,
        accepted_at_ms=ACCEPTED_AT_MS,
        deadline_ms=ACCEPTED_AT_MS + 60_000,
        traceparent=TRACEPARENT,
    )
    return msgspec.structs.replace(base, **changes)


def sequence(request_id: str = "r1", *, num_choices: int = 1, chat: bool = True, **changes: Any) -> Sequence:
    return Sequence(
        envelope=envelope(request_id, **changes),
        model="m",
        hashes=HASHES,
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(max_tokens=8, seed=7, num_choices=num_choices),
        chat=chat,
    )


def refusal(request_id: str = "r1") -> Refusal:
    error = UnknownModel("no worker serves 'x'; there is: m", param="model").body
    return Refusal(envelope=envelope(request_id), model="x", stage="pipeline", error=error)


def running(member: Member | None = None, progress: Progress | None = None) -> RunningRequest:
    return RunningRequest(member or sequence(), source=SOURCE, epoch=40, input_offset=5, progress=progress)


def output(index: int, *token_ids: int, choice: int = 0, text: str | None = None, **changes: Any) -> GenerationOutput:
    shown = "".join(f"<{token_id}>" for token_id in token_ids) if text is None else text
    return GenerationOutput(
        request_id="engine's own", choice=choice, index=index, token_ids=list(token_ids), text=shown, **changes
    )
