"""One choice of one request on its way through the engine: its tokens, and how far their KV is computed."""

import enum

from engine.types import GenerationRequest
from models.kv_keys import BlockKeyChain


class SequenceState(enum.Enum):
    """Where a sequence is: FINISHED ones hold nothing any more."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Mutable state of a sequence; the scheduler owns `state` and `is_protected`, the KV manager the block fields.

    `sequence_id` grows with arrival. `leader` is the choice of the same request whose prompt KV this one shares.
    """

    __slots__ = (
        "arrival_s",
        "blocks",
        "choice",
        "is_protected",
        "keys",
        "leader",
        "num_cached_tokens",
        "num_computed",
        "num_named",
        "num_preemptions",
        "num_prompt",
        "request",
        "sequence_id",
        "state",
        "token_ids",
    )

    def __init__(
        self,
        sequence_id: int,
        request: GenerationRequest,
        choice: int,
        *,
        arrival_s: float,
        leader: "Sequence | None" = None,
    ) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.choice = choice
        self.arrival_s = arrival_s
        self.leader = leader
        self.num_prompt = len(request.prompt_token_ids)
        self.token_ids = [*request.prompt_token_ids, *request.emitted.get(choice, ())]
        self.num_computed = 0
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.is_protected = False
        self.state = SequenceState.WAITING
        self.blocks: list[int] = []
        self.keys: BlockKeyChain | None = None
        self.num_named = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        """Output so far, a predecessor's included: the index of the next token."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_left(self) -> int:
        """Tokens that it may still get."""
        return self.request.sampling.max_tokens - self.num_output

    @property
    def num_pending(self) -> int:
        """Tokens whose KV must be computed before the next token can be sampled."""
        return len(self.token_ids) - self.num_computed

    @property
    def computed_keys(self) -> list[bytes]:
        """Keys of the full blocks whose KV is computed; none without a prefix cache."""
        return [] if self.keys is None else self.keys.keys[: self.num_named]

    @property
    def is_decoding(self) -> bool:
        """Whether one row gives the next token."""
        return self.num_pending == 1

    @property
    def is_bulk(self) -> bool:
        """Whether it gives way: bulk work that has not been made equal by its age."""
        return self.request.priority_class == "bulk" and not self.is_protected

    @property
    def rank(self) -> tuple[bool, int]:
        """Order of running sequences: the last is preempted first. Never changes while the sequence runs."""
        return self.is_bulk, self.sequence_id
