"""A background thread that runs beside a block of code."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

_log = structlog.get_logger("service.background")


@contextmanager
def until_stopped(work: Callable[[threading.Event], None], name: str, *, within: float | None = None) -> Iterator[None]:
    """Run work in a thread until the block ends; then set the work's stop event and wait for the thread.

    Args:
        work: the work, which is given the stop event.
        name: the thread's name.
        within: seconds that the end waits; a thread that does not end does not keep the process from ending then.
    """
    stopping = threading.Event()
    thread = threading.Thread(target=work, args=(stopping,), name=name, daemon=within is not None)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(within)
        if thread.is_alive():
            _log.error("a background thread does not end", thread=name)
