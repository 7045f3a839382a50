"""The token ids of a session's earlier turns, from immutable objects that point to their parents."""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from runtime.patience import Patience
from schemas.codec import SESSION_TURN
from schemas.errors import MalformedRecord, ObjectMissing, SessionUnavailable
from schemas.sessions import SessionTurn
from schemas.turns import Turn


class Reader(Protocol):
    """The part of object storage that is needed here."""

    async def get(self, key: str) -> bytes:
        """Read one object; ObjectMissing, StorageUnavailable."""
        ...


class _Link(NamedTuple):
    """What is kept of one turn. Four bytes a token: lists of Python's integers would take nine times as much."""

    turn: int
    tenant: str
    session: str
    tokenizer_hash: str
    token_ids: "array[int]"
    parent: str | None


class SessionHistory:
    """Loads chains of turns; keeps the `max_turns` last used ones, which never change once they are written."""

    def __init__(
        self, storage: Reader, *, max_turns: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._storage = storage
        self._max_turns = max_turns
        self._patience = Patience(sleep=sleep)
        self._links: OrderedDict[str, _Link] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        """How many turns wait for a storage that does not answer."""
        return self._patience.num_waiting

    async def token_ids(self, turn: Turn, *, tokenizer_hash: str) -> list[int]:
        """The ids of all turns before this one, in order; empty where there is none.

        Waits as long as storage does not answer: the turn is not lost, and only its partition waits with it.

        Raises:
            SessionUnavailable: a turn is missing, damaged, of another session, or of another tokenizer.
        """
        chain: list[_Link] = []
        key = turn.base.object if turn.base else None
        while key is not None:
            link = await self._link(key)
            _check(link, turn, chain[-1].turn if chain else None, tokenizer_hash)
            chain.append(link)
            key = link.parent
        return [token_id for link in reversed(chain) for token_id in link.token_ids]

    async def _link(self, key: str) -> _Link:
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = _link_of(key, await self._read(key))
        self._links.move_to_end(key)
        while len(self._links) > self._max_turns:
            self._links.popitem(last=False)
        return link

    async def _read(self, key: str) -> bytes:
        try:
            return await self._patience.of(lambda: self._storage.get(key), about=key)
        except ObjectMissing as error:
            raise SessionUnavailable(f"the session's earlier turn {key!r} is gone; start a new session") from error


def _link_of(key: str, data: bytes) -> _Link:
    try:
        turn: SessionTurn = SESSION_TURN.decode(data)
        token_ids = array("I", turn.token_ids)
    except (MalformedRecord, OverflowError) as error:
        raise SessionUnavailable(f"the session's earlier turn {key!r} is damaged: {error}") from error
    return _Link(turn.turn, turn.tenant, turn.session, turn.hashes.tokenizer, token_ids, turn.parent)


def _check(link: _Link, turn: Turn, newer: int | None, tokenizer_hash: str) -> None:
    """A pointer is followed only to what it must point to: the session's own turns, each older than the last."""
    envelope = turn.envelope
    if (link.tenant, link.session) != (envelope.tenant, envelope.session):
        raise SessionUnavailable("the session's state points to a turn of another session; start a new session")
    if newer is not None and link.turn >= newer:
        raise SessionUnavailable("the session's turns do not lead back to a first one; start a new session")
    if link.tokenizer_hash != tokenizer_hash:
        raise SessionUnavailable(
            "the session was begun with another tokenizer, and its tokens mean nothing to this model; start a new "
            "session or ask the model that began it",
            param="model",
        )
