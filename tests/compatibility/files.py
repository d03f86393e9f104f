"""The fixtures: what each version of the service wrote and answered, one directory a version, never changed."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import service
from tests.api.calls import Client

HERE = Path(__file__).parent
PRESENT = HERE / service.__version__  # where the command writes
VERSIONS = sorted(path for path in HERE.iterdir() if path.name[0].isdigit())
DIGESTS = "SHA256SUMS"
REFUSED = "refused"
_MADE_ANEW = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{64,128}")
DATABASES = ("sqlite", "postgresql")


class Question(NamedTuple):
    """A request, as a line of a file begins with it; the answer's text follows after a tab."""

    method: str
    path: str
    body: Any = None

    def asked(self, client: Client) -> str | None:
        """Return the text of the answer; None where the request is refused."""
        content = None if self.body is None else json.dumps(self.body)
        headers = {} if content is None else {"Content-Type": "application/json"}
        answer = client.request(self.method, self.path, content=content, headers=headers)
        return answer.text.rstrip("\n") if answer.is_success else None


def nameless(answer: str) -> str:
    """An answer without what is made anew in each run: ids, hashes and signatures."""
    return _MADE_ANEW.sub("<>", answer)


def write_answers(path: Path, answered: Iterable[tuple[Question, str]]) -> None:
    """Write questions with their answers, one a line, compressed."""
    lines = []
    for question, answer in answered:
        assert "\n" not in answer
        lines.append(f"{json.dumps(question, ensure_ascii=False)}\t{answer}\n")
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def read_answers(path: Path) -> Iterator[tuple[Question, str]]:
    """Read them again."""
    for line in gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]:
        question, _, answer = line.partition("\t")
        yield Question(*json.loads(question)), answer


def digests(version: Path) -> str:
    """Return the digests of a version's files, in the form of sha256sum."""
    names = sorted(path.name for path in version.iterdir() if path.name != DIGESTS)
    return "".join(f"{hashlib.sha256((version / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
