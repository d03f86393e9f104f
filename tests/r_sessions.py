"""R: the client package in a library of its own, and sessions that evaluate one listing after the other."""

import subprocess
from pathlib import Path

from tests.processes import PATIENCE, ROOT

PACKAGE = ROOT / "client" / "r"
_END = "<the end of a listing>"
_LOOP = f"""
listings <- file("stdin", "r")
repeat {{
  count <- readLines(listings, 1)
  if (length(count) == 0) break
  code <- textConnection(readLines(listings, as.integer(count)))
  source(code, echo = FALSE, print.eval = TRUE, spaced = FALSE)
  close(code)
  cat("\\n{_END}\\n")
  flush(stdout())
}}
"""


def install(library: Path) -> None:
    """Install the package into a library, which R finds with ``R_LIBS``."""
    command = ["R", "CMD", "INSTALL", "--no-test-load", f"--library={library}", str(PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


class RSession:
    """A process of R whose listings share their names."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["Rscript", "--vanilla", "-e", _LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, code: str) -> str:
        """Evaluate a listing and return what it prints, warnings too; it fails where R stops."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        lines = code.splitlines()
        self._process.stdin.write("\n".join([str(len(lines)), *lines, ""]))
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if line.rstrip("\n") == _END:
                return "".join(printed).removesuffix("\n")
            printed.append(line)
        raise AssertionError("".join(printed))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(PATIENCE)
