"""The role of a database with no more rights than the service needs, as an operator makes it: by psql."""

import os
import subprocess
from pathlib import Path

from sqlalchemy import make_url

from tests.postgres_server import installed

APPLICATION = "ledger_application"
_SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "postgres-roles.sql"


def run_script(owner_url: str, password: str | None = None) -> "subprocess.CompletedProcess[str]":
    """``deploy/postgres-roles.sql``, as the owner of the tables."""
    variables = {name: value for name, value in os.environ.items() if name != "LEDGER_PASSWORD"}
    address = make_url(owner_url).set(drivername="postgresql").render_as_string(hide_password=False)
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
