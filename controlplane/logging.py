"""Structured logs: events in the past tense, facts as keys, on standard error.

JSON lines in containers and services, readable lines on a terminal (``SVC_LOG_FORMAT`` decides
otherwise). What is bound with ``structlog.contextvars`` (request, job, run) appears on every later
line of that thread, and of the threads that it starts through :func:`carried`; what a process is
(a worker, a gateway) on every line of it. Lines of other libraries go through the same output.
"""

from __future__ import annotations

import contextvars
import logging.config
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import structlog

P = ParamSpec("P")
T = TypeVar("T")

_process: dict[str, str] = {}


@contextmanager
def named_process(**facts: str) -> Iterator[None]:
    """Put ``facts`` on every line of this process, whichever thread or library it comes from."""
    _process.update(facts)
    try:
        yield
    finally:
        for name in facts:
            _process.pop(name, None)


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` as something for another thread, with what is bound here and now."""
    present = contextvars.copy_context()

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # A copy for each call: one context is entered once at a time.
        return present.copy().run(function, *args, **kwargs)

    return call


def _add_process(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for name, value in _process.items():
        event.setdefault(name, value)
    return event


def configure_logging(*, level: str, log_format: str) -> None:
    """Set up structlog and the standard library's logging for this process."""
    shared = _shared()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    logging.config.dictConfig(logging_config(level=level, log_format=log_format))


def _shared() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        _add_process,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
    ]


def logging_config(*, level: str, log_format: str) -> dict[str, Any]:
    """Return the standard library's configuration, also for a server that logs before we do."""
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    final: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        # Its own tracebacks would show the values of variables, which may be secrets.
        else [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    *final,
                ],
                "foreign_pre_chain": _shared(),
            }
        },
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "structured"},
        },
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # pika tells every reconnect attempt at INFO; our own events say it once.
            "pika": {"level": "CRITICAL"},
            "django.request": {"level": "ERROR"},
        },
    }
