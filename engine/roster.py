"""Who is being served: running requests by their id, and their choices by the id of their sequence."""

from dataclasses import dataclass
from itertools import count

from engine.generation import Choice, Generation, replay
from engine.plan import StepPlan
from engine.sequence import Sequence
from engine.types import GenerationOutput, GenerationRequest
from models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that has come in, and the ends of those of its choices that a predecessor's tokens had ended."""

    generation: Generation
    ended: list[GenerationOutput]


class Roster:
    """Requests that have a choice running, and these choices. A request leaves with the last of them."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._generations: dict[str, Generation] = {}
        self._choices: dict[int, Choice] = {}
        self._sequence_ids = count()

    def __len__(self) -> int:
        return len(self._generations)

    def enter(self, request: GenerationRequest, *, prepared: object, arrival_s: float) -> Entry:
        """Take a request in. Its first running choice leads the others."""
        # Before anything is noted down: whatever fails here leaves nothing behind.
        numbers = range(request.sampling.num_choices)
        replays = [replay(request, number, self._tokenizer, self._eos_token_ids) for number in numbers]
        generation, ended = Generation(request, {}, prepared), list[GenerationOutput]()
        leader: Sequence | None = None
        for number, replayed in enumerate(replays):
            sequence = Sequence(next(self._sequence_ids), request, number, arrival_s=arrival_s, leader=leader)
            choice = Choice(sequence, replayed.stream)
            if replayed.ended is not None:
                ended.append(choice.end_output(replayed.ended, stop_reason=replayed.stop_reason))
                continue
            generation.choices[number] = self._choices[sequence.sequence_id] = choice
            leader = leader or sequence
        if generation.choices:
            self._generations[request.request_id] = generation
        return Entry(generation, ended)

    def leave(self, choice: Choice) -> None:
        """The choice has ended."""
        generation = self._generations[choice.request.request_id]
        del self._choices[choice.sequence.sequence_id]
        del generation.choices[choice.sequence.choice]
        if not generation.choices:
            del self._generations[choice.request.request_id]

    def generation(self, request_id: str) -> Generation | None:
        """A running request; None if it is not running."""
        return self._generations.get(request_id)

    def choice(self, sequence_id: int) -> Choice | None:
        """A running choice; None if it is not running."""
        return self._choices.get(sequence_id)

    def planned(self, plan: StepPlan) -> list[Choice]:
        """The choices of a plan's steps, in their order."""
        return [self._choices[step.sequence_id] for step in plan.steps]
