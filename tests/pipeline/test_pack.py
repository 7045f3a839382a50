from hypothesis import given
from hypothesis import strategies as st

from pipeline.pack import MAX_VALUE_BYTES, Prepared, pack
from pipeline.refuse import refusal
from pipeline.sampling import sampling_params
from schemas.batches import Refusal, Sequence
from schemas.codec import BATCH
from schemas.errors import UnknownModel
from schemas.requests import Message
from tests.pipeline.builders import HASHES, TRACEPARENT, chat, envelope, turn

BUDGET = 100


def sequence(request_id: str, num_tokens: int, *, text: str = "") -> Sequence:
    return Sequence(
        envelope=envelope(request_id),
        model="m",
        hashes=HASHES,
        prompt_token_ids=[9] * num_tokens,
        sampling=sampling_params(chat(), request_id=request_id, max_tokens=1, vocab_size=10),
        messages=[Message(role="user", content=text)] if text else [],
    )


def prepared(offset: int, num_tokens: int, topic: str = "batches.m") -> Prepared:
    return Prepared(topic, offset, sequence(f"r-{offset}", num_tokens))


def refused(offset: int, topic: str = "batches.none") -> Prepared:
    return Prepared(topic, offset, refusal(turn(request_id=f"r-{offset}"), UnknownModel("no")))


items = st.lists(
    st.one_of(
        st.builds(prepared, st.just(0), st.integers(1, 150), st.sampled_from(["batches.a", "batches.b"])),
        st.builds(refused, st.just(0)),
    ),
    max_size=30,
).map(lambda found: [Prepared(item.topic, offset, item.member) for offset, item in enumerate(found)])


@given(items)
def test_each_input_is_in_one_record_of_its_topic_and_topics_keep_their_order(ready: list[Prepared]) -> None:
    records = pack(ready, max_tokens=BUDGET)
    assert sorted(offset for record in records for offset in record.offsets) == list(range(len(ready)))
    for topic in {item.topic for item in ready}:
        written = [member for r in records if r.topic == topic for member in BATCH.decode(r.value).members]
        assert written == [item.member for item in ready if item.topic == topic]
        offsets = [offset for r in records if r.topic == topic for offset in r.offsets]
        assert offsets == [item.offset for item in ready if item.topic == topic]


@given(items)
def test_no_record_exceeds_the_budget_except_a_sequence_that_does_so_alone(ready: list[Prepared]) -> None:
    for record in pack(ready, max_tokens=BUDGET):
        members = BATCH.decode(record.value).members
        sizes = [len(m.prompt_token_ids) for m in members if isinstance(m, Sequence)]
        assert sum(sizes) <= BUDGET or len(sizes) == 1


def test_small_sequences_share_a_record_up_to_the_budget() -> None:
    records = pack([prepared(offset, 40) for offset in range(5)], max_tokens=BUDGET)
    assert [record.offsets for record in records] == [[0, 1], [2, 3], [4]]


def test_a_record_has_the_key_and_the_trace_of_its_first_member() -> None:
    (record,) = pack([prepared(3, 1), prepared(4, 1)], max_tokens=BUDGET)
    headers = dict(record.headers)
    assert record.key == b"r-3"
    assert (headers["ce_id"], headers["ce_type"]) == (b"r-3", b"headrace.batch")
    assert headers["traceparent"] == TRACEPARENT.encode()


def test_records_are_split_before_they_are_too_large_for_the_broker() -> None:
    text = "x" * (MAX_VALUE_BYTES // 3)
    ready = [Prepared("t", offset, sequence(f"r-{offset}", 1, text=text)) for offset in range(7)]
    records = pack(ready, max_tokens=BUDGET)
    assert all(len(record.value) <= MAX_VALUE_BYTES for record in records)
    assert [offset for record in records for offset in record.offsets] == list(range(7))


def test_one_that_no_record_can_hold_becomes_a_refusal_and_its_neighbours_go_on() -> None:
    huge = Prepared("t", 1, sequence("r-1", 1, text="x" * (MAX_VALUE_BYTES + 1)))
    records = pack(
        [Prepared("t", 0, sequence("r-0", 1)), huge, Prepared("t", 2, sequence("r-2", 1))], max_tokens=BUDGET
    )
    members = [member for record in records for member in BATCH.decode(record.value).members]
    assert [member.envelope.request_id for member in members] == ["r-0", "r-1", "r-2"]
    (refusal_,) = [member for member in members if isinstance(member, Refusal)]
    assert refusal_.error.code == "invalid_value"
    assert all(len(record.value) <= MAX_VALUE_BYTES for record in records)


def test_nothing_makes_nothing() -> None:
    assert pack([], max_tokens=BUDGET) == []
