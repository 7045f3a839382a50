"""Whatever stands in object storage: the objects of sessions and of claims."""

import asyncio
from typing import Any

import msgspec
from hypothesis import strategies as st

from pipeline.history import SessionHistory
from schemas.bodies import join_body
from schemas.codec import RESULT, SESSION_TURN
from schemas.contents import RESULT_CONTENTS, SEQUENCE_CONTENTS
from schemas.errors import HeadraceError, ObjectMissing, SessionUnavailable
from schemas.sessions import SessionTurn
from schemas.turns import BaseTurn, Turn
from tests.fuzz import samples
from tests.fuzz.damage import json_bytes
from tests.fuzz.target import Target, must

NEWEST, OLDEST = "p/2.json", "p/1.json"


def _turn(number: int, parent: str | None) -> SessionTurn:
    return SessionTurn(
        tenant=samples.TENANT,
        session=samples.SESSION_ID,
        turn=number,
        request_id=f"r-{number}",
        model=samples.MODEL,
        hashes=samples.HASHES,
        messages=list(samples.CHAT.messages),
        token_ids=[number, number + 1],
        parent=parent,
    )


VALID = {NEWEST: SESSION_TURN.encode(_turn(2, OLDEST)), OLDEST: SESSION_TURN.encode(_turn(1, None))}


class Objects:
    """Object storage in a dictionary."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    async def get(self, key: str) -> bytes:
        """Read one object."""
        if key not in self._objects:
            raise ObjectMissing(f"no object {key!r}")
        return self._objects[key]


def _check_session(objects: dict[str, bytes]) -> None:
    """The history of a session is its token ids, each of them one, or it is said to be damaged; it never goes round."""
    envelope = msgspec.structs.replace(samples.IN_SESSION, turn=3)
    turn = Turn(envelope=envelope, request=samples.CHAT, base=BaseTurn(turn=2, object=NEWEST))
    history = SessionHistory(Objects(objects), max_turns=8)
    try:
        token_ids = asyncio.run(history.token_ids(turn, tokenizer_hash=samples.HASHES.tokenizer))
    except SessionUnavailable as error:
        must(len(error.body.message) <= 1_000, "the error is longer than anyone reads")
        return
    assert all(isinstance(token_id, int) and token_id >= 0 for token_id in token_ids)


_RESULT = RESULT.decode(next(sample for sample in samples.RESULTS if b'"result/1"' in sample))
_INLINE: dict[str, Any] = {"kind": "chat", "model": "m", "id": "r-1", "max_tokens": 4, "claim": {"object": "x"}}


def _check_claimed(content: bytes) -> None:
    """An object that a claim points to is joined with its record, or the request ends with an error of its own."""
    for join in (
        lambda: RESULT_CONTENTS.joined(_RESULT, content),  # type: ignore[arg-type] # a Result
        lambda: SEQUENCE_CONTENTS.joined(samples.SEQUENCE, content),
        lambda: join_body(_INLINE, content),
    ):
        try:
            join()
        except HeadraceError as error:
            must(len(error.body.message) <= 1_000, "the error is longer than anyone reads")


_CONTENTS = [
    RESULT_CONTENTS.taken(_RESULT),  # type: ignore[arg-type] # a Result
    SEQUENCE_CONTENTS.taken(samples.SEQUENCE),
    b'{"messages":[{"role":"user","content":"hi"}],"metadata":{"a":[1.5]},"n":2.0}',
]

TARGETS = [
    Target("the object of a claim is joined or refused", json_bytes(_CONTENTS), _check_claimed),
    Target(
        "a session's history is read or refused",
        st.fixed_dictionaries({NEWEST: json_bytes(list(VALID.values())), OLDEST: json_bytes(list(VALID.values()))}),
        _check_session,
    ),
]
