"""What a worker says of a request: deltas in the shape of OpenAI's chunks, results in that of its completions. Pure."""

from consumers.journal import ChoiceProgress
from consumers.worker.piece import Ending, Piece
from consumers.worker.request import RunningRequest
from schemas.batches import Member
from schemas.requests import Message
from schemas.results import Result, ResultChoice, Timings
from schemas.tokens import ChunkChoice, ChunkMessage, TokenDelta

_MS_PER_S = 1000


def token_delta(request: RunningRequest, piece: Piece) -> TokenDelta:
    """One delta. Its id and `created` are the same on all deltas and on the result, whichever worker writes them."""
    member = request.member
    closing = piece.closing
    return TokenDelta(
        id=completion_id(member),
        object="chat.completion.chunk" if member.chat else "text_completion",
        created=_created_s(member),
        model=member.model,
        choices=[_chunk_choice(member, piece)],
        request_id=member.envelope.request_id,
        tenant=member.envelope.tenant,
        choice=piece.choice,
        index=piece.index,
        token_ids=piece.token_ids,
        source=request.source,
        epoch=request.epoch,
        attempt=request.attempt,
        usage=closing.usage if closing else None,
        status=closing.ending.status if closing else None,
        error=closing.ending.error if closing else None,
    )


def result(request: RunningRequest, ending: Ending, *, now_ms: float, build: str) -> Result:
    """The terminal record of a request. `now_ms` is broker time."""
    member, envelope, sequence = request.member, request.envelope, request.sequence
    return Result(
        id=completion_id(member),
        object="chat.completion" if member.chat else "text_completion",
        created=_created_s(member),
        model=member.model,
        request_id=envelope.request_id,
        status=ending.status,
        error=ending.error,
        choices=_result_choices(request) if sequence else [],
        usage=request.usage,
        tenant=envelope.tenant,
        session=envelope.session,
        turn=envelope.turn,
        parent=sequence.parent if sequence else None,
        messages=sequence.messages if sequence else [],
        prompt_token_ids=sequence.prompt_token_ids if sequence else [],
        num_base_tokens=sequence.num_base_tokens if sequence else 0,
        sampling=sequence.sampling if sequence else None,
        hashes=sequence.hashes if sequence else None,
        build=build,
        source=request.source,
        epoch=request.epoch,
        attempts=request.attempt + 1,
        traceparent=envelope.traceparent,
        timings=timings(request, now_ms),
    )


def timings(request: RunningRequest, now_ms: float) -> Timings:
    """Where the time went. Speed counts the tokens between the first and the last of this attempt."""
    accepted_at_ms = request.envelope.accepted_at_ms
    return Timings(
        queue_ms=_since(accepted_at_ms, request.admitted_at_ms),
        ttft_ms=_since(accepted_at_ms, request.first_token_ms),
        total_ms=_since(accepted_at_ms, now_ms),
        tokens_per_s=_tokens_per_s(request),
    )


def completion_id(member: Member) -> str:
    """OpenAI's id of an answer."""
    return f"{'chatcmpl' if member.chat else 'cmpl'}-{member.envelope.request_id}"


def _created_s(member: Member) -> int:
    return member.envelope.accepted_at_ms // _MS_PER_S


def _chunk_choice(member: Member, piece: Piece) -> ChunkChoice:
    choice = ChunkChoice(index=piece.choice, finish_reason=piece.finish_reason, logprobs=piece.logprobs or None)
    if piece.stop_reason is not None:
        choice.stop_reason = piece.stop_reason
    if member.chat:
        choice.delta = ChunkMessage(role="assistant" if piece.index == 0 else None, content=piece.text)
    else:
        choice.text = piece.text
    return choice


def _result_choices(request: RunningRequest) -> list[ResultChoice]:
    return [_result_choice(request.member, index, choice) for index, choice in sorted(request.choices.items())]


def _result_choice(member: Member, index: int, choice: ChoiceProgress) -> ResultChoice:
    return ResultChoice(
        index=index,
        finish_reason=choice.finish_reason or "error",
        token_ids=choice.token_ids,
        message=Message(role="assistant", content=choice.text) if member.chat else None,
        text=None if member.chat else choice.text,
        stop_reason=choice.stop_reason,
        logprobs=choice.logprobs or None,
    )


def _since(start_ms: float, end_ms: float | None) -> float | None:
    # Two brokers' clocks may differ by a little; a duration is never negative.
    return None if end_ms is None else round(max(0.0, end_ms - start_ms), 1)


def _tokens_per_s(request: RunningRequest) -> float | None:
    seconds_a_token = seconds_per_token(request)
    return round(1 / seconds_a_token, 2) if seconds_a_token else None


def seconds_per_token(request: RunningRequest) -> float | None:
    """Mean time between the tokens of this attempt, all choices together; None for fewer than two."""
    num_tokens = request.usage.completion_tokens - request.num_tokens_before
    if num_tokens < 2 or request.admitted_at_ms is None or request.last_token_ms is None:
        return None
    first_ms = max(request.first_token_ms or 0.0, request.admitted_at_ms)
    return max(0.0, request.last_token_ms - first_ms) / _MS_PER_S / (num_tokens - 1)
