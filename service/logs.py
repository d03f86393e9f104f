"""Logs: one JSON object per line on standard error, without bodies, query strings or messages of unexpected errors."""

import contextlib
import io
import logging
import sys
import traceback
from typing import TextIO, cast

import structlog

_PROCESSORS: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,  # the request's id, in every line that belongs to it
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
# One list for good: a logger that was used keeps the list of its first line, also when logs are configured again.
_OWN: list[structlog.typing.Processor] = [*_PROCESSORS, structlog.processors.JSONRenderer()]


def configure(level: str) -> None:
    """Give all log lines one form, also those of uvicorn and SQLAlchemy; the service's own take the shorter path."""
    structlog.configure(
        processors=_OWN,
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
    # At debug level libraries log the data that they process, some of them byte by byte.
    others = max(logging.INFO, logging.getLevelNamesMapping()[level.upper()])
    logging.basicConfig(handlers=[handler], level=others, force=True)
    for talkative in ("alembic", "httpx"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    # Its message quotes the unexpected byte of an upload, which may be a digit of a true count.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class _StandardError(io.TextIOBase):
    """Standard error that ignores failed writes, such as on a full disk: no request fails for its log line."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def _without_messages(record: logging.LogRecord) -> bool:
    """Remove the message of an unexpected error, which may quote a true count; keep its type and place."""
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        places = [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ]
        record.msg, record.args = f"{type(error).__name__} at {' < '.join(reversed(places))}", ()
        record.exc_info = record.exc_text = None
    return True
