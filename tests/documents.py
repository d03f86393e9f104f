"""Examples in Markdown files: listings that run, and what the next listing says that they print.

A listing runs where its info says so (``python run``, ``console run``, ``r run``). The listing after it, ``output``,
is what it prints; ``output noise`` where counts in it are noisy. A file's listings run from top to bottom in the
repository's root, with ``SERVICE`` and ``KEY`` in the environment; Python's share their names, and so do R's.
"""

import contextlib
import io
import re
import subprocess
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from markdown_it import MarkdownIt

from tests.processes import PATIENCE
from tests.r_sessions import RSession

ROOT = Path(__file__).resolve().parents[1]
WEB = ROOT / "service" / "web"
FILES = [ROOT / "README.md", *sorted((WEB / "guide").glob("*.md")), *sorted((WEB / "problems").glob("*.md"))]
_ADDRESS = "http://127.0.0.1:8000"  # of the documents
_SHELL = ("bash", "-euo", "pipefail", "-c")
_CHANGING = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "<id>",
    r"[0-9a-f]{64}": "<hash>",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)": "<time>",
    r"pbl_[\w.-]+": "<key>",
}
_DIGITS = re.compile(r"\d+\.\d{10,}(?:e[+-]?\d+)?|\d\.\d+e[+-]?\d+")
_STRAY = 100  # how far two draws of an example may lie apart: of its noise less than one pair in 10^20 does


class Example(NamedTuple):
    """A listing that runs.

    Attributes:
        language: the first word of its info.
        code: what runs.
        output: what it prints; None where the document does not say.
        noisy: whether counts in the output are noisy.
        line: where it begins.
    """

    language: str
    code: str
    output: str | None
    noisy: bool
    line: int


def listings(path: Path) -> Iterator[tuple[list[str], str, int]]:
    """The words of each listing's info, its text, and its line."""
    for token in MarkdownIt().parse(path.read_text(encoding="utf-8")):
        if token.type == "fence":
            assert token.map is not None
            yield token.info.split(), token.content, token.map[0] + 1


def examples_of(path: Path) -> list[Example]:
    """The listings that run, in order."""
    listed = list(listings(path))
    examples = []
    for (words, code, line), (after, output, _) in pairwise([*listed, ([""], "", 0)]):
        if "run" in words:
            printed = output if after[:1] == ["output"] else None
            examples.append(Example(words[0], code, printed, after[1:] == ["noise"], line))
    return examples


class Session:
    """The session in which a file's examples run, on a service."""

    def __init__(self, address: str) -> None:
        self.address, self.names = address, dict[str, Any]()
        self.clients: set[httpx.Client] = set()
        self.r: RSession | None = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        """Close what Python's examples opened, and end the session of R's."""
        for client in self.clients:
            client.close()
        if self.r is not None:
            self.r.close()

    def run(self, example: Example) -> str:
        """Run a command and return what it prints."""
        code = example.code.replace(_ADDRESS, self.address)
        if example.language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output), warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # short programs leave files to the interpreter
                exec(compile(code, "example", "exec"), self.names)
            self.clients |= {value for value in self.names.values() if isinstance(value, httpx.Client)}
            return output.getvalue()
        if example.language == "r":
            self.r = self.r or RSession()
            return self.r.run(code)
        done = subprocess.run(
            [*_SHELL, code],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def differs(example: Example, printed: str) -> str | None:
    """Return where the output differs from the document; None where it does not."""
    expected, got = normalised(example.output or ""), normalised(printed)
    if example.noisy:
        pairs = list(zip(_integers(expected), _integers(got), strict=False))
        if all(abs(one - other) <= _STRAY for one, other in pairs):
            expected, got = (re.sub(r" *-?\d+", "#", text) for text in (expected, got))
    return None if expected == got else f"expected\n{expected}\ngot\n{got}"


def normalised(text: str) -> str:
    """Without what differs from one run to the next, and figures to twelve digits: the last ones are the machine's."""
    for pattern, name in _CHANGING.items():
        text = re.sub(pattern, name, text)
    text = _DIGITS.sub(lambda found: f"{float(found[0]):.12g}", text)
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def _integers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]
