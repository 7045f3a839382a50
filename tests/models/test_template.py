from datetime import UTC, datetime
from typing import Any

import pytest

from models.template import NO_TEMPLATE, ChatTemplate
from schemas.errors import InvalidValue, ModelFileError

USER = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[dict[str, Any]] = USER, **options: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(
        messages, **{"add_generation_prompt": False, **options}
    )


def test_templates_render_as_in_transformers(oracle: dict[str, list[dict[str, Any]]]) -> None:
    for case in oracle["renderings"]:
        text = render(case["source"], case["messages"], tools=case["tools"], add_generation_prompt=True)
        assert text == case["text"], case["name"]


def test_the_models_marks_are_known_to_the_template() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}") == "<s>hello</s>"


def test_the_date_is_the_callers_so_that_a_replay_reads_the_same() -> None:
    source = "{{ strftime_now('%d %B %Y') }}{% macro day() %}{{ strftime_now(' %j') }}{% endmacro %}{{ day() }}"
    assert render(source, now=datetime(2026, 11, 30, tzinfo=UTC)) == "30 November 2026 334"
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now(UTC).astimezone().year)


def test_an_exception_that_the_template_raises_is_the_senders_fault_with_its_reason() -> None:
    with pytest.raises(InvalidValue, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("{{ messages[0].content + 'x' }}", [{"role": "user", "content": None}]),
        ("{{ messages[0].content.text.more }}", USER),
        ("{{ messages[5].content.more }}", USER),
        ("{{ 1 // 0 }}", USER),
        ("{{ messages | tojson }}", [{"role": "user", "content": b"bytes"}]),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", USER),
        (NO_TEMPLATE, USER),
    ],
)
def test_messages_that_a_template_fails_on_are_refused(source: str, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidValue, match=r"chat template does not accept these messages: ."):
        render(source, messages)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ strftime_now.__self__.__class__.__base__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(InvalidValue):
        render(source, messages)
    assert messages == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("source", ["{% for m in messages %}", "{{ 'open", "{% unknown %}", "{{ x | no_filter }}"])
def test_a_template_that_does_not_compile_is_the_models_fault(source: str) -> None:
    with pytest.raises(ModelFileError, match="chat template cannot be compiled"):
        ChatTemplate(source)
