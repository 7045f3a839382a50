"""One request while a worker runs it: what each choice has said, when, and how it ends."""

import asyncio

from consumers.journal import ChoiceProgress, Progress, identity_of
from consumers.worker.piece import Closing, Ending, Piece
from engine.types import GenerationOutput
from schemas.batches import Member, Sequence
from schemas.envelope import Envelope
from schemas.errors import EngineFault, ErrorBody
from schemas.sampling import FinishReason
from schemas.tokens import Usage

_FINISH_REASONS: dict[str, FinishReason] = {"failed": "error", "cancelled": "cancelled", "expired": "cancelled"}


class RunningRequest:
    """State of one member of a batch from its decision to its result. A resumed one starts with what was emitted.

    Times are broker time in milliseconds.
    """

    def __init__(
        self, member: Member, *, source: str, epoch: int, input_offset: int, progress: Progress | None
    ) -> None:
        self.member = member
        self.identity = identity_of(member.envelope)
        self.source = source
        self.epoch = epoch
        self.input_offset = input_offset
        self.attempt = progress.num_attempts if progress else 0
        self.has_gap = progress.has_gap if progress else False
        self.choices = _choices(member, progress)
        self.fault: ErrorBody | None = None
        # Set when it is over or was cancelled: whoever waits for it looks again.
        self.halted = asyncio.Event()
        self.cancelled: Ending | None = None
        self.num_cached_tokens = 0
        self.num_tokens_before = sum(len(choice.token_ids) for choice in self.choices.values())
        self.has_admission_mark = False
        self.admitted_at_ms: float | None = None
        self.first_token_ms: float | None = progress.first_token_ms if progress else None
        self.last_token_ms: float | None = None
        self._intended = Ending("cancelled")
        self._logged = Ending(progress.status, progress.error) if progress and progress.status else None

    @property
    def envelope(self) -> Envelope:
        """Who asked, until when."""
        return self.member.envelope

    @property
    def sequence(self) -> Sequence | None:
        """What to run; None for a refusal."""
        return self.member if isinstance(self.member, Sequence) else None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for: every choice has its final delta, or the engine gave up."""
        return self.fault is not None or all(choice.finish_reason for choice in self.choices.values())

    @property
    def is_decided(self) -> bool:
        """Whether a final delta has said already that it goes wrong: the other choices do not change that."""
        return any(choice.finish_reason in ("error", "cancelled") for choice in self.choices.values())

    @property
    def emitted(self) -> dict[int, list[int]]:
        """The token ids of each choice so far: where the engine goes on."""
        return {index: list(choice.token_ids) for index, choice in self.choices.items() if choice.token_ids}

    @property
    def usage(self) -> Usage:
        """Tokens in and out."""
        num_prompt = len(self.sequence.prompt_token_ids) if self.sequence else 0
        num_completion = sum(len(choice.token_ids) for choice in self.choices.values())
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_completion,
            total_tokens=num_prompt + num_completion,
            cached_tokens=self.num_cached_tokens,
        )

    @property
    def ending(self) -> Ending:
        """How it ends by what its choices have said; final deltas that were logged have decided."""
        if self._logged is not None:
            return self._logged
        if self.fault is not None:
            return Ending("failed", self.fault)
        reasons = {choice.finish_reason for choice in self.choices.values()}
        if "error" in reasons:
            return Ending("failed", EngineFault("the request failed on a worker that did not say why").body)
        return self._intended if "cancelled" in reasons else Ending("completed")

    def absorb(self, output: GenerationOutput, now_ms: float) -> Piece | None:
        """Take what the engine gave. The piece to stream, or None where there is nothing new to say.

        Raises:
            EngineFault: the engine skipped or repeated a token of the choice.
        """
        choice = self.choices[output.choice]
        if output.error is not None:
            self.fault = output.error
            return None
        if choice.finish_reason is not None:
            return None
        if output.index != len(choice.token_ids):
            raise EngineFault(f"the engine gave index {output.index} after {len(choice.token_ids)} tokens of a choice")
        self._note(output, now_ms)
        piece = Piece(
            choice=output.choice,
            index=output.index,
            token_ids=list(output.token_ids),
            text=output.text,
            logprobs=list(output.logprobs or ()),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )
        self._append(choice, piece)
        return piece

    def cancel(self, error: ErrorBody) -> None:
        """Somebody asked that it stop. It ends so unless its choices have decided otherwise by then."""
        if self.cancelled is None:
            self.cancelled = Ending("cancelled", error)
            self.halted.set()

    def stop_as(self, ending: Ending) -> None:
        """Let it end like this if the engine stops it now; a choice that ends by itself before that is not touched."""
        self._intended = ending

    def close(self, ending: Ending) -> list[Piece]:
        """End the choices that have no final delta yet; the last of the pieces closes the request."""
        self._logged = ending
        pieces = []
        for index, choice in self.choices.items():
            if choice.finish_reason is None:
                choice.finish_reason = _FINISH_REASONS[ending.status]
                pieces.append(Piece(index, len(choice.token_ids), finish_reason=choice.finish_reason))
        if pieces:
            pieces[-1].closing = Closing(ending, self.usage)
        return pieces

    def _note(self, output: GenerationOutput, now_ms: float) -> None:
        self.num_cached_tokens = output.num_cached_tokens
        if output.token_ids:
            self.first_token_ms = self.first_token_ms or now_ms
            self.last_token_ms = now_ms

    def _append(self, choice: ChoiceProgress, piece: Piece) -> None:
        choice.token_ids += piece.token_ids
        choice.text += piece.text
        choice.logprobs += piece.logprobs
        choice.finish_reason = piece.finish_reason
        choice.stop_reason = piece.stop_reason
        if self.is_over:
            self._logged = self.ending
            piece.closing = Closing(self.ending, self.usage)


def _choices(member: Member, progress: Progress | None) -> dict[int, ChoiceProgress]:
    num_choices = member.sampling.num_choices if isinstance(member, Sequence) else 1
    known = progress.choices if progress else {}
    return {index: known.get(index) or ChoiceProgress() for index in range(num_choices)}
