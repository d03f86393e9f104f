"""Waiting for something that another thread or process does."""

import threading
import time
from collections.abc import Callable

_PATIENCE = 120.0  # seconds after which a test that hangs fails


def until(condition: Callable[[], bool], what: str = "the condition was never met") -> None:
    """Wait for something that must come about."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.005)  # a test may have replaced time.sleep
