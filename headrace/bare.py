"""The engine alone, in this process: no Kafka and no other role. What `headrace generate` and `headrace bench` run."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from consumers.worker.host import open_served
from engine.config import EngineConfig
from engine.engine import Engine
from engine.types import GenerationOutput, GenerationRequest
from headrace.client.messages import new_request_id
from models.catalog import LoadedModel
from models.structured import StructureCompiler
from pipeline.context import GivenPrompt, answer_tokens, assemble
from pipeline.prompt_child import answer_of, facts_of
from pipeline.prompt_process import error_of
from pipeline.prompt_wire import Built, Refused
from pipeline.sampling import sampling_params
from schemas.codec import decode_body
from schemas.envelope import Envelope
from schemas.errors import EngineFault, InvalidValue
from schemas.requests import ChatRequest, CompletionRequest
from schemas.settings import ModelSettings, Settings
from schemas.turns import Turn

_MS_PER_S = 1000


def with_file(settings: Settings, path: str) -> Settings:
    """Settings in which the one model is a GGUF file, or "wheel:PACKAGE", named after it."""
    name = path.rpartition("/")[2].removesuffix(".gguf") or path
    worker = msgspec.structs.replace(settings.worker, model=name)
    return msgspec.structs.replace(settings, worker=worker, models={name: ModelSettings(path=path)})


class BareModel:
    """A model with its engine, stepped by whoever iterates. Not thread-safe.

    Raises:
        SettingsError: no such model is configured, or the engine's settings do not fit it.
        ModelFileError: its file is missing, damaged or unsupported.
    """

    def __init__(self, settings: Settings) -> None:
        started_s = time.monotonic()
        self.settings = settings
        self.config = EngineConfig.from_settings(settings.engine)
        self.model: LoadedModel = open_served(settings)
        self.engine = Engine.load(self.model, self.config)
        self.engine.executor.bind_thread()
        self.load_s = time.monotonic() - started_s

    @property
    def name(self) -> str:
        """What the settings call it."""
        return self.settings.worker.model

    def request(self, fields: Mapping[str, Any]) -> GenerationRequest:
        """The request that an OpenAI body means: with `messages` a chat, with `prompt` a text to go on from.

        Raises:
            InvalidValue: a field has a wrong type or value; `param` names it.
            ContextTooLong: prompt and answer do not fit.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        decoded = decode_body({"model": self.name, **given})
        body = decoded.request
        if decoded.unknown_fields or not isinstance(body, ChatRequest | CompletionRequest):
            unknown = sorted(decoded.unknown_fields) or ["input"]
            raise InvalidValue(f"not known to a generation: {', '.join(unknown)}", param=unknown[0])
        request_id = new_request_id()
        token_ids = self._prompt(body, request_id)
        max_tokens = answer_tokens(
            body,
            num_prompt_tokens=len(token_ids),
            default=self.settings.pipeline.default_max_tokens,
            context_length=self.model.spec.context_length,
        )
        sampling = sampling_params(
            body, request_id=request_id, max_tokens=max_tokens, vocab_size=self.model.tokenizer.vocab_size
        )
        return GenerationRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling)

    def stream(self, request: GenerationRequest) -> Iterator[GenerationOutput]:
        """Run one request; ended early, it leaves nothing behind.

        Raises:
            EngineFault: a choice ended with an error.
        """
        self.engine.add(request)
        try:
            while self.engine.has_work:
                for output in self.engine.step():
                    if output.error is not None:
                        raise EngineFault(output.error.message)
                    yield output
        finally:
            self.engine.cancel(request.request_id)

    def _prompt(self, body: ChatRequest | CompletionRequest, request_id: str) -> list[int]:
        """Its token ids, made by the very functions of the pipeline."""
        now_ms = int(time.time() * _MS_PER_S)
        envelope = Envelope(
            request_id=request_id, key=request_id, accepted_at_ms=now_ms, deadline_ms=now_ms, traceparent=""
        )
        job = assemble(Turn(envelope=envelope, request=body), [], facts_of(self.model))
        if isinstance(job, GivenPrompt):
            return job.token_ids
        answer = answer_of(job, self.model, StructureCompiler(self.model.tokenizer))
        if isinstance(answer, Refused):
            raise error_of(answer.error)
        if not isinstance(answer, Built):
            raise InvalidValue("a claim belongs to a request on the log: give its fields themselves", param="claim")
        return answer.token_ids
