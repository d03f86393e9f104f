"""A background thread that runs beside a block of code."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def until_stopped(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run work in a thread until the block ends; then set the work's stop event and wait for the thread."""
    stopping = threading.Event()
    thread = threading.Thread(target=work, args=(stopping,), name=name)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
