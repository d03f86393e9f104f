"""The bound on the memory of a helper process, which the operating system enforces."""

import os
import resource
import sys
from pathlib import Path

_KEPT = 1 << 28  # bytes that may stay behind: a helper that keeps more of its requests is replaced


class HelperMemory:
    """The memory of this process: what a request may take, and what it left behind.

    Linux counts private memory that can be written, used or not (RLIMIT_DATA). Beyond the bound an allocation fails.

    Args:
        own: bytes that each request may take, beside those that it reserves.
    """

    def __init__(self, own: int) -> None:
        self._own, self._at_start = own, _data_size()

    def allow(self, reserved: int) -> None:
        """Set the bound for a request that has reserved so many bytes."""
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_DATA, (self._at_start + self._own + reserved, resource.RLIM_INFINITY))

    @property
    def has_grown(self) -> bool:
        """True where so much has stayed behind that the process should be replaced."""
        return _data_size() > self._at_start + _KEPT


def _data_size() -> int:
    if sys.platform != "linux":
        return 0
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[5]) * os.sysconf("SC_PAGE_SIZE")
