import asyncio

import pytest

from pipeline.history import SessionHistory
from schemas.envelope import ModelHashes
from schemas.errors import ObjectMissing, SessionUnavailable, StorageUnavailable
from schemas.turns import BaseTurn, Turn
from tests.pipeline.builders import HASHES, session_turn, turn

OTHER_HASHES = ModelHashes(model="m", tokenizer="other", template="c")


class Storage:
    """Objects in a dict; `outages` is how many calls fail before the next one succeeds."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.reads: list[str] = []
        self.outages = 0

    async def put(self, key: str, data: bytes) -> None:
        if self.outages > 0:
            self.outages -= 1
            raise StorageUnavailable("no answer")
        self.objects[key] = data

    async def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        self.reads.append(key)
        if self.outages > 0:
            self.outages -= 1
            raise StorageUnavailable("no answer")
        if key not in self.objects:
            raise ObjectMissing(f"no object {key}")
        return self.objects[key] if max_bytes is None else self.objects[key][: max_bytes + 1]


def chain(length: int) -> dict[str, bytes]:
    """Turns 1 to `length`, of ids [10, 11], [20, 21], …"""
    return {
        f"t{i}": session_turn(i, [10 * i, 10 * i + 1], parent=f"t{i - 1}" if i > 1 else None)
        for i in range(1, length + 1)
    }


def following(number: int) -> Turn:
    return turn(session="s-1", base=BaseTurn(turn=number, object=f"t{number}"))


def history(storage: Storage, max_turns: int = 100, slept: list[float] | None = None) -> SessionHistory:
    async def sleep(delay_s: float) -> None:
        if slept is not None:
            slept.append(delay_s)
        await asyncio.sleep(0)

    return SessionHistory(storage, max_turns=max_turns, sleep=sleep)


async def ids(of: SessionHistory, number: int) -> list[int]:
    return await of.token_ids(following(number), tokenizer_hash=HASHES.tokenizer)


async def test_the_ids_of_all_turns_before_come_in_order() -> None:
    assert await ids(history(Storage(chain(3))), 3) == [10, 11, 20, 21, 30, 31]


async def test_a_first_turn_has_no_history_and_reads_nothing() -> None:
    storage = Storage({})
    assert await history(storage).token_ids(turn(), tokenizer_hash=HASHES.tokenizer) == []
    assert storage.reads == []


async def test_only_the_newest_turn_of_a_running_session_is_read() -> None:
    storage = Storage(chain(3))
    known = history(storage)
    await ids(known, 2)
    storage.reads.clear()
    assert await ids(known, 3) == [10, 11, 20, 21, 30, 31]
    assert storage.reads == ["t3"]


async def test_no_more_turns_are_kept_than_allowed_and_the_least_used_go_first() -> None:
    storage = Storage(chain(3))
    known = history(storage, max_turns=2)
    assert await ids(known, 3) == [10, 11, 20, 21, 30, 31]
    storage.reads.clear()
    await ids(known, 3)
    assert storage.reads == ["t3", "t2", "t1"]


async def test_storage_that_is_away_is_waited_for_with_growing_delays() -> None:
    storage, slept = Storage(chain(2)), list[float]()
    storage.outages = 6
    assert await ids(history(storage, slept=slept), 2) == [10, 11, 20, 21]
    assert len(slept) == 6
    assert all(0.1 <= delay <= 5.0 for delay in slept)
    assert slept[-1] > slept[0]


async def test_it_is_known_how_many_turns_wait_for_storage() -> None:
    storage = Storage(chain(1))
    storage.outages = 10**9
    sleepers = asyncio.Semaphore(0)
    is_back = asyncio.Event()

    async def sleep(_: float) -> None:
        sleepers.release()
        await is_back.wait()

    known = SessionHistory(storage, max_turns=10, sleep=sleep)
    waits = [asyncio.create_task(ids(known, 1)) for _ in range(3)]
    for _ in waits:
        await sleepers.acquire()
    assert known.num_waiting == 3
    storage.outages = 0
    is_back.set()
    assert await asyncio.gather(*waits) == [[10, 11]] * 3
    assert known.num_waiting == 0


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"t1": None}, "gone"),
        ({"t1": b"not json"}, "damaged"),
        ({"t1": session_turn(1, [2**40])}, "damaged"),
        ({"t1": session_turn(1, [-1])}, "damaged"),
        ({"t1": session_turn(1, [1], session="s-2")}, "another session"),
        ({"t1": session_turn(1, [1], tenant="evil")}, "another session"),
        ({"t1": session_turn(2, [1])}, "do not lead back"),
        ({"t1": session_turn(1, [1], parent="t2")}, "do not lead back"),
        (
            {"t1": session_turn(1, [1], hashes=ModelHashes(model="", tokenizer="other", template=""))},
            "another tokenizer",
        ),
    ],
)
async def test_a_history_that_cannot_be_trusted_refuses_the_turn(changed: dict[str, bytes | None], reason: str) -> None:
    objects = {key: data for key, data in {**chain(2), **changed}.items() if data is not None}
    with pytest.raises(SessionUnavailable, match=reason):
        await ids(history(Storage(objects)), 2)
