"""The one tree of errors, so that every role and every record names the same fault in the same way.

HeadraceError
├── RequestError            the sender must change something; ends the request as failed
│   ├── MalformedRecord     cannot be parsed at all; the record goes to `dead-letters` whole
│   ├── InvalidValue        parsed, but a field has a wrong type or value
│   ├── UnknownModel        the request names a model that nobody serves
│   ├── ContextTooLong      prompt + max_tokens do not fit the model's context
│   ├── Unsupported         understood, but not served by this version
│   ├── RequestTooLarge     does not fit a record of ours, nor an object
│   ├── ClaimMissing        the object that a record refers to is not there
│   ├── ClaimDamaged        the object that a record refers to is not the one that was meant
│   └── SessionUnavailable  the session's state is missing or too many turns wait
├── SettingsError           a setting is unknown, has a wrong type, or contradicts another
├── ModelFileError          weights or tokenizer are missing, damaged or of an unsupported kind
├── LocalStackError         the local Kafka or S3 cannot start: Java, Maven, ports, disk
├── BrokerUnavailable       Kafka does not answer (retriable)
├── StorageUnavailable      object storage does not answer (retriable)
├── ObjectMissing           object storage answers: there is no such object
├── RequestFailed           a client's request ended otherwise than completed; carries its result
├── NoAnswer                a client heard nothing of its request for too long (retriable)
├── AlreadyEnded            a client's request had been sent before; its result is not kept any more
├── DeadlineExceeded        a request's time ran out before it ended; sent again it may end in time (retriable)
├── RequestCancelled        somebody asked that the request stop
├── ModelChanged            a request was prepared for other weights or another tokenizer (retriable)
├── JournalDamaged          what was said of a request has a gap: it cannot go on
├── PromptFault             building the prompt killed or hung its process, twice
├── Fenced                  another process owns the partition now; this one must let go
└── EngineFault             a forward pass failed; says which requests it took with it
"""

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    from schemas.results import Result


class ErrorBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """OpenAI's error shape: what a client sees in a failed result.

    `type` is the class of the fault ("invalid_request_error", "server_error"), `code` the stable name of it, and
    `param` the path of the field at fault, as in "messages[0].role".
    """

    message: str
    type: str
    code: str
    param: str | None = None

    def shortened(self) -> "ErrorBody":
        """The same, short enough for any record: what a message quotes of a request may be as long as the request."""
        return ErrorBody(
            message=self.message[:1_000], type=self.type, code=self.code, param=self.param and self.param[:200]
        )


class HeadraceError(Exception):
    """Root of all our errors.

    `code` is stable and for programs; `retriable` says whether the same call may succeed later; the message says
    what to do, since nobody looks a code up.
    """

    code: str = "internal_error"
    error_type: str = "server_error"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def body(self) -> ErrorBody:
        """The error as a client sees it."""
        return ErrorBody(message=self.message, type=self.error_type, code=self.code, param=self.param).shortened()


class RequestError(HeadraceError):
    """The request itself is at fault: sent again unchanged, it fails again."""

    code = "invalid_request"
    error_type = "invalid_request_error"


class MalformedRecord(RequestError):
    """The bytes of a record cannot be parsed."""

    code = "malformed_record"


class InvalidValue(RequestError):
    """A field has a type or a value that is not allowed."""

    code = "invalid_value"


class UnknownModel(RequestError):
    """No worker serves the model that was asked for."""

    code = "model_not_found"


class ContextTooLong(RequestError):
    """The prompt and the tokens asked for do not fit the model's context."""

    code = "context_length_exceeded"


class Unsupported(RequestError):
    """The request asks for something that is understood but not served by this version."""

    code = "unsupported"


class RequestTooLarge(RequestError):
    """The request does not fit a record of ours, or its object is larger than is read."""

    code = "request_too_large"


class ClaimMissing(RequestError):
    """There is no such object as a record refers to: it was never put, or was deleted."""

    code = "claim_missing"


class ClaimDamaged(RequestError):
    """The object that a record refers to has another size, hash or content than the record says."""

    code = "claim_damaged"


class SessionUnavailable(RequestError):
    """The session's state is missing, or more turns wait for it than are allowed."""

    code = "session_unavailable"


class SettingsError(HeadraceError):
    """A setting is unknown, has a wrong type, or contradicts another."""

    code = "invalid_setting"


class ModelFileError(HeadraceError):
    """Weights or tokenizer are missing, damaged, or of a kind that is not supported."""

    code = "model_file"


class LocalStackError(HeadraceError):
    """The local Kafka or S3 cannot be installed or started."""

    code = "local_stack"


class BrokerUnavailable(HeadraceError):
    """Kafka does not answer."""

    code = "broker_unavailable"
    retriable = True


class StorageUnavailable(HeadraceError):
    """Object storage does not answer, or answers with a fault of its own."""

    code = "storage_unavailable"
    retriable = True


class ObjectMissing(HeadraceError):
    """Object storage answers that there is no such object."""

    code = "object_missing"


class RequestFailed(HeadraceError):
    """A request ended failed, cancelled or expired: `result` is its terminal record, `code` that of its error."""

    def __init__(self, result: "Result") -> None:
        error = result.error or ErrorBody(
            message=f"the request was {result.status}", type=self.error_type, code=result.status
        )
        super().__init__(error.message, param=error.param)
        self.result = result
        self.code = error.code
        self.error_type = error.type


class NoAnswer(HeadraceError):
    """Nothing was heard of a request for too long. It may still be answered: its stream can be read later."""

    code = "no_answer"
    retriable = True


class AlreadyEnded(HeadraceError):
    """A request of this id has ended before, and its result is not kept any more."""

    code = "already_ended"


class DeadlineExceeded(HeadraceError):
    """The request's deadline passed before it ended."""

    code = "deadline_exceeded"
    error_type = "timeout_error"
    retriable = True


class RequestCancelled(HeadraceError):
    """The request was stopped by a record on `control`."""

    code = "cancelled"
    error_type = "cancelled_error"


class ModelChanged(HeadraceError):
    """The worker serves other weights or another tokenizer than the request's token ids were made for."""

    code = "model_changed"
    retriable = True


class JournalDamaged(HeadraceError):
    """Deltas of the request are missing from the log: it can neither go on nor begin again without a repeat."""

    code = "journal_damaged"


class PromptFault(HeadraceError):
    """Building a request's prompt killed or hung the process that did it, and did so again when it was retried."""

    code = "prompt_fault"


class Fenced(HeadraceError):
    """Another process has taken the partition over."""

    code = "fenced"


class EngineFault(HeadraceError):
    """A forward pass failed."""

    code = "engine_fault"
