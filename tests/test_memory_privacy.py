"""No memory of the service's processes is written to a disk or read by others."""

import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT, service

# PR_GET_DUMPABLE is 3.
_STATE = "print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
_PROGRAM = f"import ctypes, resource; from service.memory_privacy import forbid_dumps; forbid_dumps(); {_STATE}"


def test_a_process_that_forbids_dumps_has_none_and_cannot_be_traced() -> None:
    shown = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == "(0, 0) 0\n"


def test_a_server_forbids_dumps(tmp_path: Path) -> None:
    with service(tmp_path) as served:
        limits = Path(f"/proc/{served.process.pid}/limits").read_text(encoding="ascii")
    (line,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert line.split()[4:6] == ["0", "0"]
