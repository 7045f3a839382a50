import asyncio
from typing import Any

import pytest

from pipeline.claims import Claim, Partition
from pipeline.outbox import MAX_BYTES, MAX_RECORDS, Outbox
from pipeline.pack import Packed, Prepared
from schemas.errors import BrokerUnavailable
from tests.pipeline.test_pack import prepared


class Bench:
    """An outbox between a claim and a producer whose acknowledgements the test gives."""

    def __init__(self, num_records: int) -> None:
        self.claim = Claim(Partition("turns", 3), 0)
        for offset in range(num_records):
            self.claim.open(offset)
        self.sent: list[tuple[Packed, int]] = []
        self.acks: list[asyncio.Future[Any]] = []
        self.failures: list[BaseException] = []
        self.num_eased = 0
        self.has_sent = asyncio.Semaphore(0)
        self.outbox = Outbox(self.claim, self.send, max_tokens=100, eased=self.eased, fail=self.failures.append)

    async def send(self, record: Packed, partition: int) -> "asyncio.Future[Any]":
        ack: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.sent.append((record, partition))
        self.acks.append(ack)
        self.has_sent.release()
        return ack

    def eased(self, _: Outbox) -> None:
        self.num_eased += 1

    def put(self, num_records: int, num_bytes: int = 1) -> list["asyncio.Future[Prepared]"]:
        futures: list[asyncio.Future[Prepared]] = []
        for offset in range(num_records):
            futures.append(asyncio.get_running_loop().create_future())
            self.outbox.put(offset, num_bytes, futures[-1])
        return futures

    @property
    def sent_offsets(self) -> list[list[int]]:
        return [record.offsets for record, _ in self.sent]


async def turn_of_the_loop() -> None:
    """Let all callbacks that are due now run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_outputs_leave_in_the_order_of_the_inputs_however_they_are_finished() -> None:
    bench = Bench(3)
    futures = bench.put(3)
    for offset in (2, 1):
        futures[offset].set_result(prepared(offset, 60))
    await turn_of_the_loop()
    assert bench.sent == []
    futures[0].set_result(prepared(0, 60))
    for _ in range(3):
        await bench.has_sent.acquire()
    assert bench.sent_offsets == [[0], [1], [2]]
    assert {partition for _, partition in bench.sent} == {3}
    bench.outbox.discard()


async def test_one_that_is_alone_does_not_wait_for_company() -> None:
    bench = Bench(2)
    first, _ = bench.put(2)
    first.set_result(prepared(0, 1))
    await bench.has_sent.acquire()
    assert bench.sent_offsets == [[0]]
    bench.outbox.discard()


async def test_what_is_ready_together_is_packed_together() -> None:
    bench = Bench(3)
    for offset, future in enumerate(bench.put(3)):
        future.set_result(prepared(offset, 1))
    await bench.has_sent.acquire()
    assert bench.sent_offsets == [[0, 1, 2]]
    bench.outbox.discard()


async def test_an_input_is_done_when_its_output_is_acknowledged_and_not_before() -> None:
    bench = Bench(2)
    for offset, future in enumerate(bench.put(2)):
        future.set_result(prepared(offset, 60))
        await bench.has_sent.acquire()
    assert bench.claim.to_commit() is None
    bench.acks[1].set_result(None)
    await turn_of_the_loop()
    assert bench.claim.to_commit() is None
    bench.acks[0].set_result(None)
    await bench.outbox.drained()
    assert bench.claim.to_commit() == 2
    assert bench.num_eased == 2
    bench.outbox.discard()


@pytest.mark.parametrize("how", ["error", "cancelled"])
async def test_an_output_that_is_not_acknowledged_ends_the_process_and_leaves_its_input_open(how: str) -> None:
    bench = Bench(1)
    bench.put(1)[0].set_result(prepared(0, 1))
    await bench.has_sent.acquire()
    if how == "error":
        bench.acks[0].set_exception(RuntimeError("disk full"))
    else:
        bench.acks[0].cancel()
    await turn_of_the_loop()
    (failure,) = bench.failures
    assert isinstance(failure, BrokerUnavailable)
    assert bench.claim.oldest_open == 0
    bench.outbox.discard()


async def test_a_producer_that_takes_nothing_ends_the_process() -> None:
    bench = Bench(1)

    async def refuse(record: Packed, partition: int) -> "asyncio.Future[Any]":
        raise RuntimeError("closed")

    outbox = Outbox(bench.claim, refuse, max_tokens=1, eased=bench.eased, fail=bench.failures.append)
    ready: asyncio.Future[Prepared] = asyncio.get_running_loop().create_future()
    ready.set_result(prepared(0, 1))
    outbox.put(0, 1, ready)
    await turn_of_the_loop()
    assert [str(failure) for failure in bench.failures] == ["closed"]
    assert bench.claim.oldest_open == 0
    bench.outbox.discard()


async def test_preparation_that_breaks_ends_the_process_and_leaves_its_input_open() -> None:
    bench = Bench(1)
    bench.put(1)[0].set_exception(KeyError("a fault of ours"))
    await turn_of_the_loop()
    assert [type(failure) for failure in bench.failures] == [KeyError]
    assert bench.claim.oldest_open == 0


@pytest.mark.parametrize(("num_records", "num_bytes"), [(MAX_RECORDS, 1), (2, MAX_BYTES // 2)])
async def test_it_is_full_by_number_or_size_and_may_be_filled_again_when_half_of_it_is_gone(
    num_records: int, num_bytes: int
) -> None:
    bench = Bench(num_records)
    futures = bench.put(num_records, num_bytes)
    assert bench.outbox.is_full
    for offset, future in enumerate(futures[: num_records // 2]):
        future.set_result(prepared(offset, 1))
    await bench.has_sent.acquire()
    while bench.acks:
        bench.acks.pop().set_result(None)
        await turn_of_the_loop()
    assert bench.outbox.is_half_empty
    bench.outbox.discard()


async def test_what_is_discarded_is_not_sent_and_its_preparation_stops() -> None:
    bench = Bench(2)
    futures = bench.put(2)
    await turn_of_the_loop()
    bench.outbox.discard()
    await turn_of_the_loop()
    assert all(future.cancelled() for future in futures)
    assert bench.sent == []
    assert bench.failures == []


async def test_an_empty_outbox_is_drained() -> None:
    bench = Bench(0)
    await bench.outbox.drained()
    bench.outbox.discard()
