"""What people see: progress, answers, tables; on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from headrace.cli.chat import figures_of_reading
from headrace.cli.progress import StartProgress
from headrace.cli.speaker import Speaker
from headrace.cli.tables import deviation_lines, table_console, topic_table
from headrace.client import Delta
from headrace.topic_report import TopicReport
from schemas.results import Result
from schemas.tokens import Usage


def plain() -> Console:
    return Console(file=io.StringIO(), width=100)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    console = plain()
    with StartProgress(console) as progress:
        progress.update("kafka", "starting", 0.0)
        progress.update("kafka", "ready", 3.21)
    assert text_of(console) == "Kafka: starting\nKafka: ready (3.2 s)\n"


def test_after_the_start_only_bad_news_is_shown_and_of_a_log_the_first_line() -> None:
    console = plain()
    with StartProgress(console) as progress:
        progress.update("worker", "ready", 1.0)
    before = text_of(console)
    progress.update("worker", "restarting: ended with code 1\nTraceback", 9.0)
    progress.update("worker", "starting", 9.1)
    progress.update("worker", "ready", 9.2)
    progress.update("worker", "stopped", 9.3)
    assert text_of(console).removeprefix(before) == "worker: restarting: ended with code 1\n"


def test_on_a_terminal_the_components_are_one_table_in_a_fixed_order() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with StartProgress(console) as progress:
        for component in ("worker", "s3", "kafka"):
            progress.update(component, "ready", 1.0)
    last = text_of(console).rsplit("Kafka", 1)[1]
    assert last.index("S3") < last.index("worker")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def say(speaker: Speaker, *texts: str, choice: int = 0) -> None:
    for index, text in enumerate(texts):
        speaker.say(Delta(request_id="r", index=index, text=text, token_ids=[index], choice=choice))


def test_an_answer_is_written_as_it_comes() -> None:
    out = io.StringIO()
    speaker = Speaker(out)
    say(speaker, "a", "b")
    assert out.getvalue() == "ab"
    speaker.end()
    assert out.getvalue() == "ab\n"


def test_an_answer_that_is_not_live_is_written_at_its_end() -> None:
    out = io.StringIO()
    speaker = Speaker(out, is_live=False)
    say(speaker, "a", "b")
    assert out.getvalue() == ""
    speaker.end()
    assert out.getvalue() == "ab\n"


def test_further_choices_follow_the_first_one() -> None:
    out = io.StringIO()
    speaker = Speaker(out)
    say(speaker, "a")
    say(speaker, "x", "y", choice=1)
    say(speaker, "b")
    speaker.end()
    assert out.getvalue() == "ab\n[choice 1]\nxy\n"


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_without_an_answer_nothing_is_written(texts: list[str]) -> None:
    out = io.StringIO()
    speaker = Speaker(out)
    for index, text in enumerate(texts):  # the last delta of a refusal, which has no token
        speaker.say(Delta(request_id="r", index=index, text=text, token_ids=[]))
    speaker.end()
    assert out.getvalue() == ""
    assert speaker.figures == "no tokens"


@pytest.mark.parametrize(("out", "shown"), [(Terminal(), "a[2Jb\n"), (io.StringIO(), "a\x1b[2Jb\n")])
def test_escape_sequences_of_a_model_do_not_reach_a_terminal(out: io.StringIO, shown: str) -> None:
    speaker = Speaker(out)
    say(speaker, "a\x1b[2Jb")
    speaker.end()
    assert out.getvalue() == shown


def test_figures_count_tokens_and_leave_the_first_ones_out_of_the_rate() -> None:
    speaker = Speaker(io.StringIO())
    speaker.say(Delta(request_id="r", index=0, text="ab", token_ids=[1, 2]))
    assert "2 tokens" in speaker.figures
    assert "tokens/s" not in speaker.figures
    speaker.say(Delta(request_id="r", index=2, text="c", token_ids=[3]))
    assert "3 tokens" in speaker.figures
    assert "tokens/s" in speaker.figures


def report(name: str, **fields: object) -> TopicReport:
    defaults: dict[str, object] = {
        "holds": "",
        "exists": True,
        "partitions": 2,
        "end_offsets": [0, 7],
        "pending": None,
        "configs": {"cleanup.policy": "delete", "retention.ms": "604800000"},
        "deviations": {},
    }
    return TopicReport(name=name, **{**defaults, **fields})  # type: ignore[arg-type] # fields of the test


def test_topics_are_shown_with_what_is_known_of_them() -> None:
    console = plain()
    compacted = {"cleanup.policy": "compact"}
    reports = [
        report("a", pending=3),
        report("b", configs=compacted, deviations={"partitions": "6"}),
        report("c", exists=False, end_offsets=[], configs={}),
        report("d", configs={"cleanup.policy": "delete", "retention.ms": "5400000"}),
    ]
    console.print(topic_table(reports, with_configs=True))
    lines = [" ".join(line.split()) for line in text_of(console).splitlines()]
    assert lines[3:7] == ["a 0 7 3 7 days", "b 0 7 - compacted", "c missing -", "d 0 7 - 1.5 hours"]
    assert deviation_lines(reports) == ["b: partitions should be 6"]


def test_a_table_on_a_pipe_folds_neither_names_nor_values(capsys: pytest.CaptureFixture[str]) -> None:
    name, offsets = "headrace.batches.smollm2-135m-instruct.bulk", [1_234_567] * 12
    table_console().print(topic_table([report(name, end_offsets=offsets)], with_configs=True))
    shown = capsys.readouterr().out
    assert name in shown
    assert " ".join(map(str, offsets)) in shown


def test_a_stream_that_is_read_again_has_a_count_and_no_rate() -> None:
    assert figures_of_reading(18, None) == "18 tokens"
    result = Result(
        id="x", object="o", created=0, model="m", request_id="r", status="completed", usage=Usage(completion_tokens=28)
    )
    assert figures_of_reading(18, result) == "18 of 28 tokens"
