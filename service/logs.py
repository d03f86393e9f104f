"""Logs: one JSON object a line on standard error; no bodies, no query strings, no messages of unexpected errors."""

import contextlib
import io
import logging
import sys
import traceback
from typing import TextIO, cast

import structlog

_PROCESSORS: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,  # the request's id, in whatever is said within it
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure(level: str) -> None:
    """Give our own lines and those of uvicorn and SQLAlchemy one form; ours, one a request, go the short way."""
    structlog.configure(
        processors=[*_PROCESSORS, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _StandardError())),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_without_messages)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_PROCESSORS,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    # What libraries tell at debug is what they work on, byte by byte some of them.
    others = max(logging.INFO, logging.getLevelNamesMapping()[level.upper()])
    logging.basicConfig(handlers=[handler], level=others, force=True)
    for talkative in ("alembic", "httpx"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    # It says which byte of an upload it did not expect, and that may be a digit of a true count.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class _StandardError(io.TextIOBase):
    """What cannot be written there, as where its disk is full, is lost: no request fails for its log line."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def _without_messages(record: logging.LogRecord) -> bool:
    """An unexpected error's message may quote what it choked on, a true count even: keep its type and place."""
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        places = [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ]
        record.msg, record.args = f"{type(error).__name__} at {' < '.join(reversed(places))}", ()
        record.exc_info = record.exc_text = None
    return True
