"""What the prompt pool and its child processes say to each other over a socket: frames of MessagePack."""

import struct
from typing import BinaryIO

import msgspec

from pipeline.claimed import ClaimedBody
from pipeline.context import ModelFacts, PromptJob
from schemas.errors import ErrorBody
from schemas.requests import ChatRequest, CompletionRequest

# A frame is the length of its body, four bytes in network order, and the body.
LENGTH = struct.Struct(">I")


class Ready(msgspec.Struct, array_like=True, tag="ready"):
    """A child's first word: its models are loaded."""

    facts: dict[str, ModelFacts]


class Built(msgspec.Struct, array_like=True, tag="built"):
    """A prompt."""

    token_ids: list[int]


class Read(msgspec.Struct, array_like=True, tag="read"):
    """A request that was put together."""

    request: ChatRequest | CompletionRequest


class Refused(msgspec.Struct, array_like=True, tag="refused"):
    """The error that a job, or loading the models, ended in."""

    error: ErrorBody


Job = PromptJob | ClaimedBody
Answer = Ready | Built | Read | Refused

JOBS: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_encoder = msgspec.msgpack.Encoder()


def framed(message: Job | Answer) -> bytes:
    """The frame of a message."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next frame; None where the other side has gone away, also in the middle of a frame."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (num_bytes,) = LENGTH.unpack(head)
    body = stream.read(num_bytes)
    return body if len(body) == num_bytes else None
