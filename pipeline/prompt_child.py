"""The child process that builds prompts: templates, parsers and tokenizers may crash or hang here and hurt nobody else.

It answers jobs in the order in which they come, one at a time. It ends when its parent does (the socket closes), and
the kernel ends it when one job takes too long: no code of ours has to run for that.
"""

import contextlib
import signal
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from models.catalog import LoadedModel, open_model
from models.prompt import Prompt, build_prompt, completion_prompt, continue_prompt
from models.structured import StructureCompiler
from pipeline.claimed import ClaimedBody, read_body
from pipeline.context import ChatPrompt, ModelFacts, PromptJob, TextPrompt, TokenPrompt
from pipeline.prompt_wire import JOBS, Built, Job, Read, Ready, Refused, framed, read_frame
from schemas.errors import ErrorBody, HeadraceError
from schemas.requests import Message


def serve(connection: socket.socket, models: Mapping[str, str], time_limit_s: float) -> None:
    """Body of the child process: load `models` (name to path), then answer jobs until the parent goes away."""
    # Ctrl-C reaches the whole process group; the parent still needs the answers to what it has taken.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # A broken connection means that the parent is gone, and nobody waits for an answer.
    with contextlib.suppress(ConnectionError), connection, connection.makefile("rb") as stream:
        try:
            loaded = {name: open_model(name, path) for name, path in models.items()}
        except HeadraceError as error:
            connection.sendall(framed(Refused(error.body)))
            return
        compilers = {name: StructureCompiler(model.tokenizer) for name, model in loaded.items()}
        connection.sendall(framed(Ready({name: facts_of(model) for name, model in loaded.items()})))
        while (body := read_frame(stream)) is not None:
            job = JOBS.decode(body)
            signal.setitimer(signal.ITIMER_REAL, time_limit_s)
            answer = answer_of(job, loaded[job.model], compilers[job.model])
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.sendall(framed(answer))


def facts_of(model: LoadedModel) -> ModelFacts:
    """What the parent must know of a model."""
    return ModelFacts(
        context_length=model.spec.context_length,
        vocab_size=model.tokenizer.vocab_size,
        hashes=model.hashes,
    )


def answer_of(job: Job, model: LoadedModel, compiler: StructureCompiler) -> Built | Read | Refused:
    """Build one prompt, and see whether its answer can be held to its structure; an error of the request becomes the
    answer."""
    try:
        if isinstance(job, ClaimedBody):
            return Read(read_body(job, model.tokenizer))
        if job.asked is not None:
            compiler.compile(job.asked.structure, param=job.asked.param)
        return Built(_prompt(job, model).token_ids)
    except HeadraceError as error:
        return Refused(_named_after(job, error.body))


def _prompt(job: PromptJob, model: LoadedModel) -> Prompt:
    if isinstance(job, TokenPrompt):
        return Prompt(job.token_ids)
    return _chat(job, model) if isinstance(job, ChatPrompt) else _text(job, model)


def _chat(job: ChatPrompt, model: LoadedModel) -> Prompt:
    messages = [_as_template_sees(message) for message in job.messages]
    now = datetime.fromtimestamp(job.now_ms / 1000, tz=UTC)
    limit = job.max_prompt_tokens
    if job.history:
        return continue_prompt(model.tokenizer, model.template, job.history, messages, now=now, max_prompt_tokens=limit)
    return build_prompt(model.tokenizer, model.template, messages, now=now, max_prompt_tokens=limit)


def _text(job: TextPrompt, model: LoadedModel) -> Prompt:
    if not job.history:
        return completion_prompt(model.tokenizer, job.text, max_prompt_tokens=job.max_prompt_tokens)
    return Prompt(job.history + model.tokenizer.encode(job.text, special=True), len(job.history))


def _as_template_sees(message: Message) -> dict[str, Any]:
    named = {"name": message.name} if message.name is not None else {}
    return {"role": message.role, "content": message.text, **named}


def _named_after(job: Job, error: ErrorBody) -> ErrorBody:
    """The error with `param` as the field is called in this kind of request."""
    is_misnamed = isinstance(job, TextPrompt) and error.param == "messages"
    return msgspec.structs.replace(error, param="prompt") if is_misnamed else error
