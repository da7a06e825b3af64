"""Structured logs: events in the past tense, facts as keys, on standard error.

JSON lines in containers and services, readable lines on a terminal (``SVC_LOG_FORMAT`` decides
otherwise). What is bound with ``structlog.contextvars`` (request, job, worker) appears on every
later line of that thread. Lines of other libraries go through the same output.
"""

from __future__ import annotations

import logging.config
import sys
from typing import Any

import structlog


def configure_logging(*, level: str, log_format: str) -> None:
    """Set up structlog and the standard library's logging for this process."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
    ]
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    final: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer()]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "structured": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "processors": [
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        *final,
                    ],
                    "foreign_pre_chain": shared,
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
    )
