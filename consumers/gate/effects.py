"""What a step of a session asks to be done: records to write, objects to put or to read."""

from typing import NamedTuple

from schemas.names import Lane
from schemas.results import Result
from schemas.sessions import ParkedTurn, SessionState, SessionTurn
from schemas.turns import Turn


class ForwardTurn(NamedTuple):
    """Write the turn to `turns`."""

    turn: Turn
    lane: Lane


class SaveState(NamedTuple):
    """Write the state to `sessions`."""

    state: SessionState


class Park(NamedTuple):
    """Write the parked turn to `sessions`."""

    record: ParkedTurn


class Unpark(NamedTuple):
    """Delete the parked turn from `sessions`."""

    record: ParkedTurn


class EndTurn(NamedTuple):
    """Write the terminal record of a turn that is not forwarded."""

    turn: Turn
    result: Result


class PointToFirst(NamedTuple):
    """Write that the request was sent again. Nothing more will come of it if the first one has ended."""

    turn: Turn
    has_ended: bool


class PutObject(NamedTuple):
    """Put the object of the turn that has ended, then go on with `stored`. Nothing else is to be done meanwhile."""

    key: str
    content: SessionTurn


class FetchContent(NamedTuple):
    """Read what the result has in object storage, then go on with `fetched`. Nothing else is to be done meanwhile."""

    result: Result


Effect = ForwardTurn | SaveState | Park | Unpark | EndTurn | PointToFirst | PutObject | FetchContent
