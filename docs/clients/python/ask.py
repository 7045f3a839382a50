"""Ask headrace one question with a plain Kafka client, print the tokens as they come, stop at the result.

pip install confluent-kafka
KAFKA_BROKERS=localhost:9092 python ask.py "Why is the sky blue?" [SESSION]
"""

import json
import os
import sys
import time
import uuid

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

BROKERS = os.environ.get("KAFKA_BROKERS", "localhost:9092")
NAMESPACE = os.environ.get("NAMESPACE", "headrace")
MODEL = os.environ.get("MODEL", "smollm2-135m-instruct")
TENANT = "default"
TIMEOUT_S = 120

# Reading begins this long before the request was accepted: time enough for a worker that was replaced to fall silent.
REWIND_MS = 30_000


def ask(text, session=None):
    request = {"id": str(uuid.uuid4()), "model": MODEL, "messages": [{"role": "user", "content": text}]}
    if session:
        request["session"] = session
    partition, accepted_ms = send(request)
    consumer = Consumer(
        {
            "bootstrap.servers": BROKERS,
            "group.id": "unused",  # librdkafka wants one; nothing is committed and no group is joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    try:
        topics = [f"{NAMESPACE}.tokens", f"{NAMESPACE}.results"]
        consumer.assign([start(consumer, topic, partition, accepted_ms - REWIND_MS) for topic in topics])
        return read(consumer, request["id"])
    finally:
        consumer.close()


def send(request):
    """Produce the request. The acknowledgement tells its partition, and the time that the broker gave it."""
    acknowledged = []

    def on_delivery(error, message):
        if error:
            raise KafkaException(error)
        acknowledged.append((message.partition(), message.timestamp()[1]))

    # Kafka's default partitioner. librdkafka's own default would choose another partition.
    producer = Producer({"bootstrap.servers": BROKERS, "partitioner": "murmur2_random", "enable.idempotence": True})
    key = request.get("session") or request["id"]
    producer.produce(f"{NAMESPACE}.requests", json.dumps(request), key, on_delivery=on_delivery)
    producer.flush()
    return acknowledged[0]


def start(consumer, topic, partition, time_ms):
    """The first record at or after a broker time, or the end. The end is asked for first: records arrive meanwhile."""
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition))
    [found] = consumer.offsets_for_times([TopicPartition(topic, partition, time_ms)])
    return TopicPartition(topic, partition, min(found.offset, end) if found.offset >= 0 else end)


def read(consumer, request_id):
    """Print each delta that counts, and give the result."""
    epochs = {}  # the newest takeover of each source so far
    next_index = 0
    shown = ""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        record = json.loads(message.value())
        kind = record.get("schema")
        if kind == "takeover/1":
            epochs[record["source"]] = message.offset()
            continue
        if record.get("request_id") != request_id or record.get("tenant", "default") != TENANT:
            continue
        if kind == "delta/1":
            is_void = record["epoch"] < epochs.get(record["source"], 0)
            if is_void or record["index"] != next_index:
                continue
            choice = record["choices"][0]
            piece = choice["delta"].get("content", "")
            print(piece, end="", flush=True)
            shown += piece
            # After the last delta no index fits any more.
            next_index = -1 if choice.get("finish_reason") else next_index + len(record.get("token_ids", []))
        elif kind == "result/1":
            finish(record, shown)
            return record
    raise TimeoutError(f"no result within {TIMEOUT_S} s")


def finish(result, shown):
    """The result is the truth: `tokens` and `results` are two topics, and its last deltas may come behind it."""
    text = "".join(choice["message"].get("content", "") for choice in result.get("choices", [])[:1])
    print(text.removeprefix(shown) if text.startswith(shown) else f"\n{text}", flush=True)


if __name__ == "__main__":
    answer = ask(*sys.argv[1:3])
    print(json.dumps({name: answer.get(name) for name in ("status", "usage", "error")}), file=sys.stderr)
    sys.exit(0 if answer["status"] == "completed" else 1)
