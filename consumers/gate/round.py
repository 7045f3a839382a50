"""What one round of decisions asks for: whatever waited is decided together and written together."""

from typing import NamedTuple

from consumers.gate.admission import Refuse
from consumers.gate.book import SessionKey
from consumers.gate.deposits import Held
from consumers.gate.effects import PutObject
from consumers.transactor import OutRecord, Position
from schemas.control import DeadLetter
from schemas.envelope import Status
from schemas.results import Result


class PlainTurn(NamedTuple):
    """A turn that needs no transaction: its input is done when it is acknowledged."""

    record: OutRecord
    position: Position


class Letter(NamedTuple):
    """A dead letter, which may have to be put into object storage before it can be written."""

    letter: DeadLetter
    decision: Refuse


class Put(NamedTuple):
    """An object to put. The result at `position` is done when what follows from it is written."""

    effect: PutObject
    session: SessionKey
    position: Position


class Fetch(NamedTuple):
    """A result to be made whole from object storage. It is done when what follows from it is written."""

    result: Result
    session: SessionKey
    position: Position


class Round:
    """Collects decisions. `writes` and `closes` belong into one transaction; `done` needs none.

    What is in `dropped` need not be put any more.
    """

    def __init__(self) -> None:
        self.plain: list[PlainTurn] = []
        self.writes: list[OutRecord] = []
        self.closes: list[Position] = []
        self.done: list[Position] = []
        self.letters: list[Letter] = []
        self.puts: list[Put] = []
        self.deposits: list[Held] = []
        self.dropped: list[Held] = []
        self.fetches: list[Fetch] = []
        self.ended: list[Status] = []
