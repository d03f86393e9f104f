"""Memory of this process stays in this process: it holds true counts, noise before it is charged, and the secret."""

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4  # of <linux/prctl.h>


def forbid_dumps() -> None:
    """Let no core dump be written, and no other process of this user read this one's memory or trace it.

    The limit passes on to programs that this process starts; on Linux each has to refuse tracing by itself.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        failed = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        if failed:
            raise OSError(ctypes.get_errno(), "the process could not be made undumpable")
