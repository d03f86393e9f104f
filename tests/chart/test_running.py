"""The commands and variables of the chart's containers, run here: the migration, the roles, and a server."""

import importlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg import sql

from tests.api.calls import open_account, pure, release
from tests.chart.test_values import CHART, example, merged
from tests.faults.processes import free_ports
from tests.postgres_server import Cluster, installed
from tests.processes import PATIENCE, ROOT, service

pytestmark = pytest.mark.chart

_PASSWORDS = {
    "ledger-owner": "owner's",
    "ledger-application": "application's",
    "ledger-client": "client's",
    "ledger-mail": "mail's",
}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a PostgreSQL that asks for passwords, with the tables' owner and an empty database of it."""
    (number,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        options = f"-c listen_addresses=127.0.0.1 -c port={number}"
        made = Cluster(Path(directory), durable=False, options=options)
        access = "local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (made.directory / "pg_hba.conf").write_text(access)
        made.start()
        at = made.url.replace("+psycopg", "") + f"&port={number}"
        with psycopg.connect(at, autocommit=True) as session:
            password = sql.Literal(_PASSWORDS["ledger-owner"])
            session.execute(sql.SQL("CREATE ROLE ledger LOGIN CREATEROLE PASSWORD {}").format(password))
            session.execute("CREATE DATABASE ledger OWNER ledger")
        try:
            yield number
        finally:
            made.stop()


def _objects(port: int) -> dict[str, dict[str, Any]]:
    values = merged(example("postgresql"), {"database": {"host": "127.0.0.1", "port": port, "sslmode": "disable"}})
    values["database"]["authority"] = {"configMap": ""}
    with importlib.import_module("helm_python").Chart.load(str(CHART)) as chart:
        texts = chart.render(values, name="prod", namespace="ledger")
    objects = [one for name, text in texts.items() if name.endswith(".yaml") for one in yaml.safe_load_all(text) if one]
    return {one["kind"]: one for one in objects}


def _variables(container: dict[str, Any]) -> dict[str, str]:
    """Return the variables, with those from Secrets as the cluster sets them."""
    given = {one["name"]: one for one in container["env"] if one["name"] != "SERVICE_BOOTSTRAP_KEY"}
    return {
        name: one.get("value") or _PASSWORDS[one["valueFrom"]["secretKeyRef"]["name"]] for name, one in given.items()
    }


def _run(command: list[str], variables: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"} | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_server_charges_after_the_migration(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = _objects(port)
    pod = objects["Job"]["spec"]["template"]["spec"]
    (migrate,), (roles,) = pod["initContainers"], pod["containers"]
    script = tmp_path / "postgres-roles.sql"
    script.write_text(objects["ConfigMap"]["data"]["postgres-roles.sql"])
    for _ in range(2):  # the second time as at an upgrade
        said = _run([sys.executable, *migrate["command"][1:]], _variables(migrate))
        command = [str(installed() / "psql"), *roles["command"][1:]]
        assert command[-1].startswith("--file=/script/")
        said += _run([*command[:-1], f"--file={script}"], _variables(roles))
        assert [password for password in _PASSWORDS.values() if password in said] == []

    (server,) = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    variables = _variables(server)
    # As the cluster mounts it: a link, which the pod's group may read.
    secret = tmp_path / "mounted"
    secret.write_text("ab" * 32)
    secret.chmod(0o440)
    link = tmp_path / Path(variables["SERVICE_SECRET_FILE"]).name
    link.symlink_to(secret)
    mark = tmp_path / "mark" / Path(variables["SERVICE_HIGH_WATER_FILE"]).name
    variables |= {"SERVICE_SECRET_FILE": str(link), "SERVICE_HIGH_WATER_FILE": str(mark)}
    monkeypatch.setenv("PGPASSWORD", variables.pop("PGPASSWORD"))
    settings = {name.removeprefix("SERVICE_").lower(): value for name, value in variables.items()}
    settings |= {"helper_processes": "0", "oidc_issuer": "", "oidc_audience": "", "drain_seconds": "0"}
    settings |= {"oidc_client_id": "", "oidc_client_secret": "", "smtp_host": "", "smtp_user": "", "smtp_password": ""}
    with service(tmp_path, **settings) as served:
        assert served.client.get("/healthz").status_code == served.client.get("/readyz").status_code == 200
        open_account(served.client, budget={"definition": "pure", "epsilon": 1})
        release(served.client, pure("0.1"))
        assert served.stop() == 0
    said = "".join(served.said)
    assert [password for password in _PASSWORDS.values() if password in said] == []
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600
