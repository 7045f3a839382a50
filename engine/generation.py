"""One request while the engine works on it: its choices, and the outputs that they have given."""

from dataclasses import dataclass

from engine.sequence import Sequence
from engine.stream import Accepted, ChoiceStream
from engine.types import GenerationOutput, GenerationRequest
from models.tokenizer import Tokenizer
from schemas.errors import ErrorBody
from schemas.sampling import FinishReason, TokenLogprob


@dataclass(slots=True, eq=False)
class Choice:
    """A choice that has not ended yet."""

    sequence: Sequence
    stream: ChoiceStream

    @property
    def request(self) -> GenerationRequest:
        """The request that it belongs to."""
        return self.sequence.request

    def token_output(self, token_id: int, accepted: Accepted, logprob: TokenLogprob | None) -> GenerationOutput:
        """The output for a token that the stream has just accepted."""
        return GenerationOutput(
            request_id=self.request.request_id,
            choice=self.sequence.choice,
            index=self.stream.num_tokens - 1,
            token_ids=[token_id],
            text=accepted.text,
            logprobs=None if logprob is None else [logprob],
            finish_reason=accepted.finish_reason,
            stop_reason=accepted.stop_reason,
            error=accepted.error,
            num_prompt_tokens=self.sequence.num_prompt,
            num_cached_tokens=self.sequence.num_cached_tokens or 0,
        )

    def end_output(
        self,
        finish_reason: FinishReason,
        *,
        text: str = "",
        stop_reason: str | int | None = None,
        error: ErrorBody | None = None,
    ) -> GenerationOutput:
        """The last output of a choice that ends without another token."""
        return GenerationOutput(
            request_id=self.request.request_id,
            choice=self.sequence.choice,
            index=self.stream.num_tokens,
            token_ids=[],
            text=text,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=self.sequence.num_prompt,
            num_cached_tokens=self.sequence.num_cached_tokens or 0,
            error=error,
        )


@dataclass(slots=True, eq=False)
class Generation:
    """The choices of a request that are still running, by number. Ends with the last of them.

    `prepared` is held so that what was compiled for the request stays compiled.
    """

    request: GenerationRequest
    choices: dict[int, Choice]
    prepared: object = None


@dataclass(frozen=True, slots=True)
class Replay:
    """A stream that has seen a predecessor's tokens, and how these ended the choice, if they did."""

    stream: ChoiceStream
    ended: FinishReason | None = None
    stop_reason: str | int | None = None


def replay(request: GenerationRequest, choice: int, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> Replay:
    """Bring a choice's stream to where a predecessor left it. Its text is dropped: the predecessor gave it out."""
    stream = ChoiceStream(tokenizer, request.sampling, eos_token_ids)
    for token_id in request.emitted.get(choice, ()):
        accepted = stream.accept(token_id)
        if accepted.finish_reason is not None:
            return Replay(stream, accepted.finish_reason, accepted.stop_reason)
    return Replay(stream)
