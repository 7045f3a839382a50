"""The rules by which a stream is put together from the log. Pure: records in, deltas out, no Kafka and no clock."""

from headrace.client.delta import Delta
from schemas.results import Result, ResultChoice
from schemas.tokens import TokenDelta


class Assembly:
    """One request's stream. `add` takes valid deltas in the order of the log, `end` the terminal record.

    A delta counts only at the next index of its choice; what repeats an earlier one is dropped. Whatever the log did
    not show (expired, or a result that came without deltas) is made up from the result at the end, so that the joined
    deltas of a completed request always equal its result.

    From `from_index` on all is delivered; the first delta may begin before it, since its text cannot be cut.
    """

    def __init__(self, request_id: str, *, from_index: int = 0) -> None:
        self.request_id = request_id
        self._from_index = from_index
        self._choices: dict[int, _Choice] = {}
        self._result: Result | None = None

    @property
    def result(self) -> Result | None:
        """The terminal record, once it was seen."""
        return self._result

    @property
    def is_whole(self) -> bool:
        """Whether the result and the last delta of each choice were seen: no delta can follow."""
        if self._result is None:
            return False
        if not self._result.choices:
            return any(choice.is_finished for choice in self._choices.values())
        return all(self._choice(choice.index).is_finished for choice in self._result.choices)

    def add(self, record: TokenDelta) -> Delta | None:
        """Take a delta; returns what is to be delivered of it."""
        choice = self._choice(record.choice)
        if choice.is_finished or record.index != choice.next_index or not (record.token_ids or record.finish_reason):
            return None
        return self._deliver(
            choice,
            Delta(
                request_id=self.request_id,
                choice=record.choice,
                index=record.index,
                token_ids=record.token_ids,
                text=record.text,
                finish_reason=record.finish_reason,
            ),
        )

    def end(self, result: Result) -> None:
        """Take the terminal record. The first one counts."""
        if self._result is None:
            self._result = result

    def rest(self) -> list[Delta]:
        """What the result has and no delta showed, as one last delta for each such choice."""
        if self._result is None:
            return []
        unfinished = (choice for choice in self._result.choices if not self._choice(choice.index).is_finished)
        made = [self._deliver(self._choice(choice.index), self._missing(choice)) for choice in unfinished]
        return [delta for delta in made if delta is not None]

    def _missing(self, answer: ResultChoice) -> Delta:
        choice = self._choice(answer.index)
        fits = answer.content.startswith(choice.text)
        return Delta(
            request_id=self.request_id,
            choice=answer.index,
            index=choice.next_index,
            token_ids=answer.token_ids[choice.next_index :],
            text=answer.content[len(choice.text) :] if fits else "",
            finish_reason=answer.finish_reason,
        )

    def _deliver(self, choice: "_Choice", delta: Delta) -> Delta | None:
        choice.advance(delta)
        is_wanted = choice.next_index > self._from_index or delta.finish_reason is not None
        return delta if is_wanted else None

    def _choice(self, number: int) -> "_Choice":
        return self._choices.setdefault(number, _Choice())


class _Choice:
    """How far one choice has come."""

    def __init__(self) -> None:
        self.next_index = 0
        self.is_finished = False
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    def advance(self, delta: Delta) -> None:
        """Note a delta that counts."""
        self.next_index = delta.next_index
        self._texts.append(delta.text)
        self.is_finished = delta.finish_reason is not None
