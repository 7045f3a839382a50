"""The transactional producer of a partition: all or nothing, fenced, and with all that waits in one transaction."""

import asyncio
import gc

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic

from consumers.transactor import OutRecord, Position, Transactor
from headrace.local.background import BackgroundStack
from runtime.kafka import make_admin, make_consumer, make_producer
from runtime.ledger import Ledger
from schemas.errors import BrokerUnavailable, Fenced
from schemas.settings import KafkaSettings

pytestmark = pytest.mark.integration

TOO_LARGE = 2_000_000


class Bench:
    """One input and one output topic, and a transactor between them."""

    def __init__(self, kafka: KafkaSettings, namespace: str) -> None:
        self.kafka = kafka
        self.group = f"{namespace}.group"
        self.input = TopicPartition(f"{namespace}.in", 0)
        self.output = TopicPartition(f"{namespace}.out", 0)
        self.transactional_id = f"{namespace}.id"

    async def create(self) -> None:
        admin = make_admin(self.kafka)
        await admin.start()
        await admin.create_topics([NewTopic(tp.topic, 1, 1) for tp in (self.input, self.output)])
        await admin.close()

    async def transactor(self, ledger: Ledger, *, metadata: str = "") -> Transactor:
        """A started one; it fences those before it."""
        producer = make_producer(self.kafka, transactional_id=self.transactional_id)
        await producer.start()
        transactor = Transactor(producer, self.group, {self.input: ledger}, metadata=lambda *_: metadata)
        transactor.start()
        return transactor

    def record(self, value: bytes) -> OutRecord:
        return OutRecord(self.output.topic, 0, b"key", value, [("header", b"1"), ("empty", None)])

    async def written(self) -> list[tuple[int, bytes]]:
        """Offsets and values of what is committed."""
        reader = make_consumer(self.kafka)
        await reader.start()
        try:
            reader.assign([self.output])
            await reader.seek_to_beginning(self.output)
            end = (await reader.end_offsets([self.output]))[self.output]
            found: list[tuple[int, bytes]] = []
            while await reader.position(self.output) < end:
                batches = await reader.getmany(self.output, timeout_ms=200)
                found += [(record.offset, record.value) for record in batches.get(self.output, [])]
            return found
        finally:
            await reader.stop()

    async def committed(self) -> tuple[int, str] | None:
        """Offset and metadata that the group has committed of the input."""
        admin = make_admin(self.kafka)
        await admin.start()
        try:
            offsets = await admin.list_consumer_group_offsets(self.group)
            found = offsets.get(self.input)
            return None if found is None else (found.offset, found.metadata)
        finally:
            await admin.close()


@pytest.fixture
async def bench(stack: BackgroundStack, namespace: str) -> Bench:
    running = Bench(KafkaSettings(bootstrap_servers=stack.bootstrap_servers), namespace)
    await running.create()
    return running


def opened(num_records: int) -> Ledger:
    ledger = Ledger(0)
    for offset in range(num_records):
        ledger.open(offset)
    return ledger


async def test_records_and_offset_are_committed_together_with_metadata(bench: Bench) -> None:
    ledger = opened(3)
    transactor = await bench.transactor(ledger, metadata="epoch 5")
    offsets = await transactor.submit([bench.record(b"a"), bench.record(b"b")], [Position(bench.input, 0)])
    assert await bench.written() == list(zip(offsets, [b"a", b"b"], strict=True))
    assert await bench.committed() == (1, "epoch 5")
    assert ledger.committable == 1
    await transactor.stop()


async def test_an_offset_behind_one_that_is_not_done_is_not_committed(bench: Bench) -> None:
    ledger = opened(3)
    transactor = await bench.transactor(ledger)
    await transactor.submit([bench.record(b"a")], [Position(bench.input, 1)])
    assert await bench.committed() == (0, "")
    await transactor.submit([], [Position(bench.input, 0)])
    assert await bench.committed() == (2, "")
    await transactor.stop()


async def test_what_waits_goes_into_one_transaction(bench: Bench) -> None:
    """Each transaction leaves a marker of one offset: so many submissions without a gap were one."""
    num_records = 50
    transactor = await bench.transactor(opened(num_records))
    offsets = await asyncio.gather(
        *(transactor.submit([bench.record(b"%d" % n)], [Position(bench.input, n)]) for n in range(num_records))
    )
    flat = [offset for (offset,) in offsets]
    assert flat == list(range(num_records)), "they are in the order in which they were submitted"
    await transactor.submit([bench.record(b"alone")])
    assert [offset for offset, _ in await bench.written()][-1] == num_records + 1
    assert await bench.committed() == (num_records, "")
    await transactor.stop()


async def test_offsets_can_be_committed_where_nothing_is_closed(bench: Bench) -> None:
    transactor = await bench.transactor(opened(2))
    await transactor.submit((), commits=[bench.input])
    assert await bench.committed() == (0, "")
    await transactor.stop()


async def test_the_owner_before_is_fenced_and_writes_nothing_more(bench: Bench) -> None:
    before_ledger = opened(2)
    before = await bench.transactor(before_ledger)
    await before.submit([bench.record(b"before")], [Position(bench.input, 0)])
    after = await bench.transactor(opened(2))
    with pytest.raises(Fenced):
        await before.submit([bench.record(b"zombie")], [Position(bench.input, 1)])
    with pytest.raises(Fenced):
        await before.submit([], commits=[bench.input])
    await after.submit([bench.record(b"after")], [Position(bench.input, 0)])
    assert [value for _, value in await bench.written()] == [b"before", b"after"]
    assert await bench.committed() == (1, "")
    assert before_ledger.committable == 1
    await before.stop()
    await after.stop()


async def test_nothing_is_said_to_be_forgotten_when_an_owner_is_fenced(bench: Bench) -> None:
    """aiokafka fails many futures of its own at once; asyncio reports each that nobody has looked at."""
    forgotten: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(str(context)))
    before = await bench.transactor(opened(1))
    after = await bench.transactor(opened(1))
    failures = await asyncio.gather(
        *(before.submit([bench.record(b"zombie")] * 3, [Position(bench.input, 0)]) for _ in range(3)),
        return_exceptions=True,
    )
    assert [type(one) for one in failures] == [Fenced] * 3
    await before.stop()
    await after.stop()
    del before, after, failures
    gc.collect()
    assert forgotten == []


async def test_an_owner_fenced_without_records_learns_it_from_its_offsets(bench: Bench) -> None:
    before = await bench.transactor(opened(1))
    after = await bench.transactor(opened(1))
    with pytest.raises(Fenced):
        await before.submit((), commits=[bench.input])
    await before.stop()
    await after.stop()


async def test_a_transaction_that_fails_writes_nothing_of_all_that_was_in_it(bench: Bench) -> None:
    ledger = opened(3)
    transactor = await bench.transactor(ledger)
    submissions = [
        transactor.submit([bench.record(b"good")], [Position(bench.input, 0)]),
        transactor.submit([bench.record(b"x" * TOO_LARGE)], [Position(bench.input, 1)]),
        transactor.submit([bench.record(b"good too")], [Position(bench.input, 2)]),
    ]
    failures = await asyncio.gather(*submissions, return_exceptions=True)
    assert [type(one) for one in failures] == [BrokerUnavailable] * 3
    with pytest.raises(BrokerUnavailable):
        await transactor.submit([])
    await transactor.stop()
    # The next owner completes the transaction that was left open, and begins where nothing was done.
    successor = await bench.transactor(opened(3))
    assert await bench.written() == []
    assert await bench.committed() is None
    assert (ledger.committable, ledger.num_open) == (0, 3)
    await successor.stop()


async def test_stopping_commits_what_waits(bench: Bench) -> None:
    transactor = await bench.transactor(opened(2))
    submitted = asyncio.create_task(transactor.submit([bench.record(b"last")], [Position(bench.input, 0)]))
    # One turn of the loop, so that it has been submitted.
    await asyncio.sleep(0)
    await transactor.stop()
    assert submitted.done()
    assert [value for _, value in await bench.written()] == [b"last"]
    assert await bench.committed() == (1, "")


async def test_who_gave_up_waiting_does_not_undo_the_transaction(bench: Bench) -> None:
    transactor = await bench.transactor(opened(2))
    submitted = asyncio.create_task(transactor.submit([bench.record(b"kept")], [Position(bench.input, 0)]))
    await asyncio.sleep(0)
    submitted.cancel()
    await transactor.submit([], [Position(bench.input, 1)])
    assert [value for _, value in await bench.written()] == [b"kept"]
    assert await bench.committed() == (2, "")
    await transactor.stop()
