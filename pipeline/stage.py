"""One turn from the gate's record to what travels to a worker: context, tokenization, sampling, or a refusal."""

import asyncio

import msgspec

from pipeline.context import GivenPrompt, ModelFacts, answer_tokens, assemble, generation_request
from pipeline.history import SessionHistory
from pipeline.refuse import STAGE, refusal, unknown_model
from pipeline.sampling import sampling_params
from pipeline.tokenize import PromptPool
from pipeline.turn_claims import TurnClaims
from runtime.logging import bound, get_logger
from runtime.metrics import RECORDS_REFUSED, STAGE_SECONDS
from schemas.batches import Member, Sequence
from schemas.envelope import Envelope
from schemas.errors import DeadlineExceeded, HeadraceError
from schemas.names import Lane
from schemas.requests import ChatRequest
from schemas.settings import Settings
from schemas.turns import Turn

log = get_logger(__name__)


class Stage:
    """Turns to members of batches. Keeps no state of its own: any process may do any turn, and again."""

    def __init__(self, settings: Settings, pool: PromptPool, history: SessionHistory, claims: TurnClaims) -> None:
        self._models = settings.models
        self._default_max_tokens = settings.pipeline.default_max_tokens
        self._pool = pool
        self._history = history
        self._claims = claims

    @property
    def num_waiting(self) -> int:
        """How many turns wait for an object storage that does not answer."""
        return self._history.num_waiting + self._claims.num_waiting

    async def member(self, turn: Turn, lane: Lane, *, seconds_left: float | None = None) -> Member:
        """The sequence of a turn; whatever goes wrong with it becomes its refusal.

        So does a deadline that passes meanwhile: object storage may be away for longer than that.
        """
        with bound(request=turn.envelope.request_id, session=turn.envelope.session):
            limit = asyncio.timeout(seconds_left)
            try:
                async with limit:
                    return await self._sequence(turn, lane)
            except HeadraceError as known:
                error = known
            except Exception:
                if limit.expired():
                    error = _late()
                else:
                    log.exception("stage_failed")
                    error = HeadraceError("the pipeline failed on this request; the cause is in its log")
            log.info("refused", code=error.code)
        RECORDS_REFUSED.labels(STAGE, error.code).inc()
        return refusal(turn, error)

    async def _sequence(self, turn: Turn, lane: Lane) -> Sequence:
        facts = await self._facts(generation_request(turn).model)
        # One token of the context is for the answer.
        turn = await self._claims.whole(turn, max_prompt_tokens=facts.context_length - 1, lane=lane)
        request = generation_request(turn)
        with STAGE_SECONDS.labels("context").time():
            history = await self._history.token_ids(turn, tokenizer_hash=facts.hashes.tokenizer)
            job = assemble(turn, history, facts)
        with STAGE_SECONDS.labels("tokenize").time():
            token_ids = job.token_ids if isinstance(job, GivenPrompt) else await self._pool.build(job, lane=lane)
        max_tokens = answer_tokens(
            request,
            num_prompt_tokens=len(token_ids),
            default=self._default_max_tokens,
            context_length=facts.context_length,
        )
        is_chat = isinstance(request, ChatRequest)
        sequence = Sequence(
            envelope=_numbered(turn),
            model=request.model,
            hashes=facts.hashes,
            prompt_token_ids=token_ids,
            sampling=sampling_params(
                request,
                request_id=turn.envelope.request_id,
                max_tokens=max_tokens,
                vocab_size=facts.vocab_size,
            ),
            chat=is_chat,
            num_base_tokens=len(history),
            parent=turn.base.object if turn.base else None,
            messages=request.messages if isinstance(request, ChatRequest) and turn.envelope.session else [],
        )
        return await self._claims.fitting(sequence)

    async def _facts(self, model: str) -> ModelFacts:
        """What is known of a model, with the context that the settings leave of it."""
        settings = self._models.get(model)
        if settings is None:
            raise unknown_model(model, self._models)
        facts = await self._pool.facts(model)
        shorter = min(settings.context_length or facts.context_length, facts.context_length)
        return msgspec.structs.replace(facts, context_length=shorter)


def _late() -> HeadraceError:
    return DeadlineExceeded("the deadline passed before the request was begun; send it again with a later one")


def _numbered(turn: Turn) -> Envelope:
    """The envelope with the number of a session's turn, which is one more than that of its base."""
    if turn.envelope.session is None or turn.envelope.turn is not None:
        return turn.envelope
    return msgspec.structs.replace(turn.envelope, turn=turn.base.turn + 1 if turn.base else 1)
