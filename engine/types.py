"""What goes into the engine and what comes out: plain records, the same whether a thread, a test or a worker asks."""

import msgspec

from schemas.envelope import DEFAULT_TENANT, PriorityClass
from schemas.errors import ErrorBody
from schemas.sampling import FinishReason, SamplingParams, TokenLogprob

# The `stop_reason` of a request that ended as cancelled because its deadline passed.
DEADLINE = "deadline"


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to go on from it.

    `emitted` holds, by choice, the token ids that a predecessor has already given out: generation resumes at the next
    index with the very token it would have had. Of two requests of one tenant and class that arrive together, the
    higher `priority` goes first. `deadline_s` is on the engine's clock (monotonic).
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    emitted: dict[int, list[int]] = {}
    tenant: str = DEFAULT_TENANT
    priority_class: PriorityClass = "interactive"
    priority: int = 0
    deadline_s: float | None = None


class GenerationOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one choice.

    `index` is the place of `token_ids[0]` in the choice's stream, counted from 0 (where the next token would be, if
    there is none). `text` is what may be shown now: unfinished characters and the beginnings of stop strings are held
    back, so it does not match the tokens one to one. The end-of-text token is in `token_ids` and not in `text`.
    Each choice gets exactly one output with a `finish_reason`; `error` says why if that is "error". `stop_reason` is
    the stop string or the stop token that ended the choice, or DEADLINE.
    """

    request_id: str
    choice: int
    index: int
    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    error: ErrorBody | None = None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine holds now, and what it has done since it was loaded. Sequences are choices of requests.

    Of `num_draft_tokens` tokens that were guessed in `num_drafts` drafts, `num_accepted_tokens` were right.
    """

    num_running: int
    num_waiting: int
    kv_blocks_total: int
    kv_blocks_free: int
    kv_blocks_cached: int
    kv_blocks_used: int
    num_steps: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    num_failed_steps: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_imported_blocks: int = 0
    num_refused_imports: int = 0
