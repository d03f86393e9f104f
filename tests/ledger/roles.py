"""The role of a database with no more rights than the service needs, as an operator makes it: by psql."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from service.ledger.storage.database import Database, open_database
from service.ledger.storage.migrate import prepare
from service.ledger.storage.secret import Secret
from tests.ledger.charging import open_account
from tests.postgres_server import installed, libpq_url

APPLICATION = "ledger_application"
_SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "postgres-roles.sql"


def run_script(owner_url: str, password: str | None = None) -> "subprocess.CompletedProcess[str]":
    """``deploy/postgres-roles.sql``, as the owner of the tables."""
    variables = {name: value for name, value in os.environ.items() if name != "LEDGER_PASSWORD"}
    address = libpq_url(owner_url)
    return subprocess.run(
        [installed() / "psql", "--no-psqlrc", "--quiet", f"--file={_SCRIPT}", address],
        env=variables | ({} if password is None else {"LEDGER_PASSWORD": password}),
        capture_output=True,
        text=True,
        check=False,
    )


def application_url(owner_url: str) -> str:
    """The database's URL for the service, once the script has run there."""
    done = run_script(owner_url)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return make_url(owner_url).set(username=APPLICATION).render_as_string(hide_password=False)


@contextmanager
def served_by_role(owner_url: str, secret: Secret, **options: Any) -> Iterator[Database]:
    """A ledger with an account, of the application's role."""
    with closing(open_database(application_url(owner_url), **options)) as database:
        database.secret = secret
        prepare(database, embedded=False)
        open_account(database, definition="pure", epsilon="3")
        yield database
