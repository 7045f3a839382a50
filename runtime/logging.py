"""Structured logs on stderr: readable lines on a terminal, JSON elsewhere; request, session and offset are bound."""

import logging
import sys
from typing import Any, cast

import structlog
from structlog.contextvars import bound_contextvars
from structlog.typing import FilteringBoundLogger, Processor

from runtime.log_repeats import RepeatFilter
from schemas.settings import LoggingSettings

# Chatty at info for what is our daily business: each rebalance, each Faust service that starts.
_NOISY_LOGGERS = ("aiokafka", "faust", "mode", "urllib3", "asyncio")


def configure(settings: LoggingSettings, *, role: str) -> None:
    """Set structlog and the standard library's logging up once, at the start of a process."""
    as_console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    # Tracebacks without local variables: those hold prompts, generated text and secrets.
    if as_console:
        renderer: list[Processor] = [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    else:
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        renderer = [
            structlog.processors.ExceptionRenderer(tracebacks),
            structlog.processors.JSONRenderer(sort_keys=True),
        ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(_number(settings.level)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatFilter(*_NOISY_LOGGERS))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_number(settings.level))
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, _number(settings.level)))
    structlog.contextvars.bind_contextvars(role=role)


def get_logger(name: str) -> FilteringBoundLogger:
    """The logger of one module."""
    return cast(FilteringBoundLogger, structlog.get_logger(name))


def bound(**context: Any) -> Any:
    """Bind request, session, partition or offset to every line that is logged inside the `with` block."""
    return bound_contextvars(**{name: value for name, value in context.items() if value is not None})


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]
