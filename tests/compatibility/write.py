"""Write the fixtures of the present version: ``python -m tests.compatibility.write``. Those that are there stay."""

import contextlib
import json
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service import logs
from service.ledger.releases.expiry_keeper import ExpiryKeeper
from service.ledger.storage.database import open_database
from service.ledger.storage.migrate import migrate
from service.ledger.storage.secret import Secret
from tests.api.calls import Client, application, client_of, json_of
from tests.compatibility.comparing import ARITHMETIC, arithmetic
from tests.compatibility.figures import draw, laws, questions
from tests.compatibility.files import DIGESTS, PRESENT, REFUSED, Question, digests, nameless, write_answers
from tests.compatibility.installation import SECRET, Installation, fix_keystreams, reports
from tests.compatibility.ledger import fill
from tests.ledger.ledgers import Clock
from tests.postgres_server import postgres_server

_ALL_RECEIPTS = ("zcdp-replace_one", "approximate-add_remove")  # elsewhere of a few releases
_FEW = 3


def ledger_questions(client: Client) -> Iterator[Question]:
    """Return the requests to a ledger: accounts with their balances now and earlier, releases, receipts and draws."""
    yield Question("GET", "/v1/accounts")
    for account in json_of(client.get("/v1/accounts"))["items"]:
        name, seq = account["name"], account["head"]["seq"]
        at = f"/v1/accounts/{name}"
        for path in ("", "/head", "/verify", "/balance", "/history?points=12", "/registry-entry"):
            yield Question("GET", at + path)
        for query in ("delta=1e-6", f"as_of={(seq + 1) // 2}", "tag=all"):
            yield Question("GET", f"{at}/balance?{query}")
        for cap in account.get("caps", ()):
            for path in ("balance", "history"):
                yield Question("GET", f"{at}/{path}?tag={cap['tag']}")
        if "periods" in account:
            for path in ("periods?limit=20", "balance?period=2030" + ("-Q1" if name == "quarters" else "-01")):
                yield Question("GET", f"{at}/{path}")
        releases = json_of(client.get(f"{at}/releases?limit=1000"))["items"]
        states = {release["state"] for release in releases}
        for state in sorted(states):
            yield Question("GET", f"{at}/releases?state={state}&limit=2")
        own = account["name"].partition("-")[0] not in ("pure", "rdp", "add", "replace", "zcdp", "approximate")
        for release in releases if own or name in _ALL_RECEIPTS else releases[:_FEW]:
            yield Question("GET", f"{at}/releases/{release['id']}/receipt")
            if own:
                yield Question("GET", f"{at}/releases/{release['id']}/events")
            if name == "drawn":  # elsewhere tests made them up
                yield Question("GET", f"{at}/releases/{release['id']}/draws")


def answered(client: Client, asked: Iterator[Question]) -> Iterator[tuple[Question, str]]:
    """Return the answers; a refusal, or an answer that there is nothing, is no evidence."""
    for question in asked:
        answer = question.asked(client)
        if answer is not None and not answer.startswith('{"items": []'):
            yield question, answer


def _ledger(kind: str, url: str, home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        time, installation = Clock(patch), Installation(home, url)
        with contextlib.closing(open_database(url)) as database:
            migrate(database)
            database.secret = Secret(SECRET)
            with client_of(application(database, Secret(SECRET))) as client:
                fill(client, database, time)
                ExpiryKeeper(database).expire_all(threading.Event())  # before the answers, and not amid them
                write_answers(PRESENT / f"{kind}.answers.tsv.gz", answered(client, ledger_questions(client)))
        file = PRESENT / f"{kind}.export.jsonl"
        file.write_text(installation.run("export"), encoding="utf-8")
        (PRESENT / f"{kind}.verify.txt").write_text(reports(installation, file), encoding="utf-8")


def _sqlite() -> None:
    with tempfile.TemporaryDirectory() as home:
        _ledger("sqlite", f"sqlite:///{home}/ledger.db", Path(home))


def _postgresql() -> None:
    with tempfile.TemporaryDirectory() as home, postgres_server() as url:
        _ledger("postgresql", url, Path(home))


def write_figures(directory: Path) -> None:
    """Ask for figures, and write the answers by kind."""
    for kind, asked in questions().items():
        with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
            Clock(patch)
            url = f"sqlite:///{home}/ledger.db"
            migrate(url)
            fix_keystreams(patch)
            with Installation(Path(home), url).client() as client:
                found = [(question, nameless(question.asked(client) or REFUSED)) for question in asked]
        write_answers(directory / f"{kind}.figures.tsv.gz", found)
    drawn = [(Question("", "", law), json.dumps(draw(law))) for law in laws()]
    write_answers(directory / "noise.figures.tsv.gz", drawn)
    (directory / ARITHMETIC).write_text(arithmetic() + "\n")


_WRITERS: dict[str, Callable[[], None]] = {
    "sqlite.export.jsonl": _sqlite,
    "postgresql.export.jsonl": _postgresql,
    "noise.figures.tsv.gz": lambda: write_figures(PRESENT),
}


def main() -> None:
    """Write what is not there yet."""
    logs.configure("error")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    PRESENT.mkdir(exist_ok=True)
    for name, write in _WRITERS.items():
        if not (PRESENT / name).exists():
            write()
    sums = PRESENT / DIGESTS
    kept = sums.read_text() if sums.exists() else ""
    now = digests(PRESENT)
    assert set(kept.splitlines()) <= set(now.splitlines()), "a file that is kept was changed"
    sums.write_text(now)
    print(json.dumps({path.name: path.stat().st_size for path in sorted(PRESENT.iterdir())}, indent=1))


if __name__ == "__main__":
    main()
