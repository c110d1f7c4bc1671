"""The format of log lines: one event per line on standard error, as text or JSON.

Lines of libraries that use `logging` have the same format.
"""

import logging
import os
import sys
from typing import Any, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger


def get_logger(**fields: Any) -> FilteringBoundLogger:
    """Makes a logger with `fields` on each line; may be called before the configuration."""
    return cast("FilteringBoundLogger", structlog.get_logger(**fields))


def configure_logging(process: str, level: str, json: bool) -> None:
    """Sets the process's log format; `process` is on every line, `level` is a name like `info`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _process_adder(process),
    ]
    rendering = _rendering(json)
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


def _process_adder(process: str) -> Processor:
    fields = {"process": process, "pid": os.getpid()}

    def add_process(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**fields, **event}

    return add_process


def _rendering(json: bool) -> list[Processor]:
    """Formats tracebacks without the values of locals, which may be users' prompts."""
    if json:
        transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        return [
            structlog.processors.ExceptionRenderer(transformer),
            structlog.processors.JSONRenderer(),
        ]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
