"""The fair lock: its order among threads, and its holder taking it again."""

import threading

from service.privacy.numerics.fair_lock import FairLock
from tests.waiting import until


def test_who_takes_the_lock_again_gets_it_after_all_that_wait() -> None:
    lock, order = FairLock(), list[str]()

    def take(name: str) -> None:
        lock.acquire()
        order.append(name)
        lock.release()

    lock.acquire()
    threads = []
    for name in ("first", "second", "third"):
        before = lock._last
        threads.append(threading.Thread(target=take, args=(name,)))
        threads[-1].start()
        until(lambda last=before: lock._last is not last)  # type: ignore[misc]  # bound by its default
    lock.release()
    take("again")
    for thread in threads:
        thread.join()
    assert order == ["first", "second", "third", "again"]


def test_its_holder_may_take_it_again_and_others_wait_for_the_last_release() -> None:
    lock, taken = FairLock(), threading.Event()

    def take() -> None:
        lock.acquire()
        taken.set()
        lock.release()

    for _ in range(3):
        lock.acquire()
    thread = threading.Thread(target=take)
    before = lock._last
    thread.start()
    until(lambda: lock._last is not before)
    for _ in range(2):
        lock.release()
        assert not taken.is_set()
    lock.release()
    thread.join()
    assert taken.is_set()
