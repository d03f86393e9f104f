"""A thread beside a block of code, for what a server does now and then."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def until_stopped(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run work in a thread until the end of the block, which sets the work's event and waits until it returns."""
    stopping = threading.Event()
    thread = threading.Thread(target=work, args=(stopping,), name=name)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
