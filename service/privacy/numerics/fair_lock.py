"""A lock that threads get in the order in which they asked for it."""

from threading import Lock, get_ident


class FairLock:
    """A lock that its holder may take again, and that threads get in the order in which they asked for it.

    A thread that releases a lock of ``threading`` and takes it again at once gets it before those that wait. So some
    threads that compute keep others from it for seconds. Here each thread waits for at most one hold of each other.

    Each hold has a lock of its own, which is free when the hold is over; the next thread waits for that.
    """

    __slots__ = ("_again", "_end", "_holder", "_last", "_queue")

    def __init__(self) -> None:
        """Make a lock that nobody holds."""
        self._queue, self._last = Lock(), Lock()
        self._end = self._last  # of the present hold
        self._holder, self._again = 0, 0  # the thread that holds it, and how often it took it again

    def acquire(self) -> None:
        """Wait until all that asked before have released the lock; its holder does not wait."""
        caller = get_ident()
        if self._holder == caller:
            self._again += 1
            return
        end = Lock()
        end.acquire()
        with self._queue:
            before, self._last = self._last, end
        before.acquire()
        self._holder, self._end = caller, end

    def release(self) -> None:
        """Let the next thread have the lock, when it has been released as often as it was taken."""
        if self._again:
            self._again -= 1
            return
        self._holder = 0
        self._end.release()
