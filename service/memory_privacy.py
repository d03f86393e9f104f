"""Protection of this process's memory: it holds true counts, noise before it is charged, and the secret."""

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4  # of <linux/prctl.h>


def forbid_dumps() -> None:
    """Prevent core dumps, and access of other processes of this user to this one's memory.

    The core limit is inherited by programs that this process starts; on Linux each has to refuse tracing by itself.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        failed = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        if failed:
            raise OSError(ctypes.get_errno(), "the process could not be made undumpable")
