"""Chat templates: the Jinja text in a model's file, run in a sandbox with what transformers gives to it.

Compared with transformers' `utils/chat_template_utils.py`, whose environment this repeats.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.errors import InvalidValue, ModelFileError

# For models that have none: any use of it says so.
NO_TEMPLATE = "{{ raise_exception('this model has no chat template; send a text completion instead') }}"


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """The nodes between the tag and its end, in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatTemplate:
    """One compiled chat template. Immutable; may be used by several threads."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._marks = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ModelFileError(f"The chat template cannot be compiled: {error}.") from error

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[dict[str, Any]] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The conversation as the model was trained to read it.

        `now` is what a template that writes the date sees: pass the request's time, so that a replay reads the same.
        InvalidValue with the template's own reason if it does not accept these messages.
        """
        time = datetime.now().astimezone() if now is None else now
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=time.strftime,
                **self._marks,
            )
        except MemoryError:
            raise
        except Exception as error:  # a template is a program: messages of an unforeseen shape may raise anything
            reason = str(error) or type(error).__name__
            raise InvalidValue(
                f"The model's chat template does not accept these messages: {reason}.", param="messages"
            ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001 - templates pass these by position or name, as to json.dumps
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001 - as above
) -> str:
    """JSON as models saw it in training; Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
