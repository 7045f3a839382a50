"""Ask headrace with a request, and read a result, that need not fit a Kafka record: what is large goes through S3.

pip install confluent-kafka minio
KAFKA_BROKERS=localhost:9092 S3_ENDPOINT=localhost:8333 S3_ACCESS_KEY=… S3_SECRET_KEY=… python large.py < request.json

Standard input is the body of a request, standard output its whole result. (ask.py beside it has the Kafka part.)
"""

import hashlib
import io
import json
import os
import sys
import time
import uuid
from datetime import UTC, datetime

from ask import BROKERS, NAMESPACE, REWIND_MS, TENANT, TIMEOUT_S, send, start
from confluent_kafka import Consumer, KafkaException
from minio import Minio

BUCKET = os.environ.get("S3_BUCKET", "headrace")

# A request of more bytes than this travels by claim check.
MAX_INLINE_BYTES = 512 * 1024

# What must be in the record; everything else may be in the object.
INLINE = {"schema", "id", "session", "tenant", "model", "kind", "class", "priority", "ttl_s", "deadline_ms", "stream"}


def claimed(s3, request):
    """The request as it fits a record. The object is put first: whoever reads the record finds it."""
    if len(json.dumps(request).encode()) <= MAX_INLINE_BYTES:
        return request
    content = json.dumps({name: value for name, value in request.items() if name not in INLINE}).encode()
    sha256 = hashlib.sha256(content).hexdigest()
    day = datetime.now(UTC).date().isoformat()
    key = f"{NAMESPACE}/claims/{request.get('tenant', TENANT)}/{day}/{sha256}"
    s3.put_object(BUCKET, key, io.BytesIO(content), len(content), content_type="application/json")
    inline = {name: value for name, value in request.items() if name in INLINE}
    kind = "chat" if "messages" in request else "completion"
    return {**inline, "kind": kind, "claim": {"object": key, "sha256": sha256, "num_bytes": len(content)}}


def followed(s3, result):
    """The result with what its record did not hold: `choices`, `messages` and `prompt_token_ids`."""
    claim = result.pop("claim", None)
    if claim is None:
        return result
    response = s3.get_object(BUCKET, claim["object"])
    try:
        content = response.read()
    finally:
        response.close()
        response.release_conn()
    if len(content) != claim["num_bytes"] or hashlib.sha256(content).hexdigest() != claim["sha256"]:
        raise ValueError(f"{claim['object']} is not the object that was meant")
    return {**result, **json.loads(content)}


def wait(request, partition, accepted_ms):
    """The first terminal record of the request. Another tenant's may have the same id."""
    awaited = ("result/1", request["id"], request.get("tenant", TENANT))
    settings = {"group.id": "unused", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": BROKERS, **settings})
    try:
        consumer.assign([start(consumer, f"{NAMESPACE}.results", partition, accepted_ms - REWIND_MS)])
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            record = json.loads(message.value())
            if (record["schema"], record["request_id"], record.get("tenant", TENANT)) == awaited:
                return record
        raise TimeoutError(f"no result within {TIMEOUT_S} s")
    finally:
        consumer.close()


if __name__ == "__main__":
    s3 = Minio(
        os.environ.get("S3_ENDPOINT", "localhost:8333"),
        access_key=os.environ.get("S3_ACCESS_KEY"),
        secret_key=os.environ.get("S3_SECRET_KEY"),
        secure=os.environ.get("S3_SECURE") == "1",
    )
    asked = {"id": str(uuid.uuid4()), **json.load(sys.stdin)}
    print(json.dumps(followed(s3, wait(asked, *send(claimed(s3, asked))))))
