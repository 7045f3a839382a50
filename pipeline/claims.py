"""Which records this process has taken from each input partition, and how far it may commit.

Faust's own bookkeeping (lists of acknowledged offsets and gaps) acknowledges what failed, stops at transaction markers
and forgets what it drops. Here a record is open from the moment it leaves the Kafka client until its output is
acknowledged, whatever happens to it in between; what was lost on the way is never committed past, only read again.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from runtime.ledger import Ledger


class Record(Protocol):
    """What is needed of a client's record."""

    @property
    def offset(self) -> int:
        """Its place in its partition."""
        ...


R = TypeVar("R", bound=Record)
P = TypeVar("P", bound=tuple[str, int])


class Partition(NamedTuple):
    """An input partition. Equal to the clients' own tuples of topic and number."""

    topic: str
    partition: int


class Claim:
    """The right to work on a partition from one position on, until it is sought anew or given up.

    Records are opened in the thread of the Kafka client and closed in the event loop's.
    """

    def __init__(self, partition: Partition, position: int) -> None:
        self.partition = partition
        self._ledger = Ledger(position)
        self._committed = position
        self._lock = threading.Lock()
        self._is_void = False

    @property
    def is_void(self) -> bool:
        """Whether its records have been or will be read again, here or elsewhere: work on them is wasted."""
        return self._is_void

    @property
    def num_open(self) -> int:
        """How many records were taken and are not done."""
        with self._lock:
            return self._ledger.num_open

    @property
    def oldest_open(self) -> int | None:
        """The first record that was taken and is not done: nothing at or behind it is committed."""
        with self._lock:
            return self._ledger.committable if self._ledger.num_open else None

    def open(self, offset: int) -> bool:
        """Note a record that was taken; False if the position has gone back and it was taken before."""
        with self._lock:
            return self._ledger.open(offset)

    def advance(self, position: int) -> None:
        """Note that the client is at `position`: all records below it have been opened or do not exist."""
        with self._lock:
            self._ledger.advance(position)

    def close(self, offsets: Iterable[int]) -> None:
        """Note that the outputs of these records are acknowledged."""
        with self._lock:
            for offset in offsets:
                self._ledger.close(offset)

    def void(self) -> None:
        """Give it up."""
        self._is_void = True

    def to_commit(self) -> int | None:
        """The offset to commit, if it is another than the last one committed."""
        with self._lock:
            offset = self._ledger.committable
            return offset if offset > self._committed else None

    def committed(self, offset: int) -> None:
        """Note that `offset` is committed."""
        with self._lock:
            self._committed = max(self._committed, offset)


class Taken(NamedTuple, Generic[R]):
    """A record of the client with the claim under which it was taken."""

    record: R
    claim: Claim


class Claims:
    """The claims of this process, one a partition. Safe to use from both threads."""

    def __init__(self) -> None:
        self._claims: dict[Partition, Claim] = {}
        self._lock = threading.Lock()

    def renew(self, partition: tuple[str, int], position: int) -> Claim:
        """Claim a partition whose client was just sought to `position`. An earlier claim on it becomes void."""
        name = Partition(*partition)
        with self._lock:
            self._void(name)
            claim = self._claims[name] = Claim(name, position)
            return claim

    def give_up(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Void the claims on these partitions: they are not ours any more."""
        with self._lock:
            for partition in partitions:
                self._void(Partition(*partition))

    def current(self) -> list[Claim]:
        """All claims that hold."""
        with self._lock:
            return list(self._claims.values())

    def take(self, records: Mapping[P, Sequence[R]]) -> dict[P, list[Taken[R]]]:
        """Open records that just left the client, by topic and partition number.

        Those of a partition without a claim are left out: the client must go back to where they begin.
        """
        taken = {}
        for partition, batch in records.items():
            with self._lock:
                claim = self._claims.get(Partition(*partition))
            if claim is not None:
                taken[partition] = self._opened(claim, batch)
        return taken

    def advance(self, positions: Mapping[P, int]) -> None:
        """Note where the client stands in each partition, when it has handed out all records below."""
        for partition, position in positions.items():
            with self._lock:
                claim = self._claims.get(Partition(*partition))
            if claim is not None:
                claim.advance(position)

    def _opened(self, claim: Claim, batch: Sequence[R]) -> list[Taken[R]]:
        taken = []
        for record in batch:
            if not claim.open(record.offset):
                # The log was cut behind us, and the client went back to what is there.
                claim = self.renew(claim.partition, record.offset)
                claim.open(record.offset)
            taken.append(Taken(record, claim))
        return taken

    def _void(self, name: Partition) -> None:
        claim = self._claims.pop(name, None)
        if claim is not None:
            claim.void()
