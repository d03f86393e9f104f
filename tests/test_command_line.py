"""The command line, as an operator uses it: real processes, signals and exit codes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

_ROOT = Path(__file__).resolve().parents[1]
_KEY = "an-operator's-own-key-of-40-characters!!"
_ACCOUNT = {
    "name": "people",
    "unit": "person",
    "neighbouring": "add_remove",
    "budget": {"definition": "pure", "epsilon": 1},
}


def _environment(directory: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SERVICE_")}
    return kept | {"SERVICE_DATA_DIR": str(directory / "data")} | variables


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service", *arguments]
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


@contextlib.contextmanager
def _serving(environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "service", "serve", "--port", str(port)]
    process = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {_KEY}"}) as client:
            _wait_until_ready(process, client)
            yield process, client
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[str], client: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        with contextlib.suppress(httpx.TransportError):
            if client.get("/readyz").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError("the service did not become ready")


def _stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=30)
    assert process.returncode == 0
    return output


def test_the_ledger_survives_a_restart_and_the_first_key_is_the_operators(tmp_path: Path) -> None:
    environment = _environment(tmp_path, SERVICE_BOOTSTRAP_KEY=_KEY)
    with _serving(environment) as (process, client):
        opened = client.post("/v1/accounts", json=_ACCOUNT)
        assert opened.status_code == 201
        out, err = _stop(process)
    assert _KEY not in out + err
    assert (tmp_path / "service.secret").exists(), "the secret is next to the data directory and not in it"
    with _serving(environment) as (process, client):
        assert client.get("/v1/accounts/people").json() == opened.json()
        _stop(process)


def test_without_a_key_of_the_operators_one_is_printed_once(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    with _serving(environment) as (process, client):
        out, _ = _stop(process)
        token = next(line.strip() for line in out.splitlines() if line.strip().startswith("pbl_"))
    with _serving(environment) as (process, client):
        assert client.get("/v1/accounts", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        out, _ = _stop(process)
    assert "pbl_" not in out


def test_sigterm_finishes_what_is_running(tmp_path: Path) -> None:
    answers: list[httpx.Response] = []
    with _serving(_environment(tmp_path, SERVICE_BOOTSTRAP_KEY=_KEY)) as (process, client):
        assert client.post("/v1/accounts", json=_ACCOUNT).status_code == 201
        body = {"name": "long", "mechanism": {"type": "geometric", "epsilon": 1}, "counts": [7] * 200_000}

        def draw() -> None:
            answers.append(client.post("/v1/accounts/people/draws", json=body, timeout=60))

        running = threading.Thread(target=draw)
        running.start()
        time.sleep(0.5)  # sampling takes seconds; where the request were done by then, the test would still hold
        _stop(process)
        running.join()
    assert answers[0].status_code == 201
    assert len(answers[0].json()["noisy"]) == 200_000


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    environment = _environment(tmp_path, SERVICE_BOOTSTRAP_KEY=_KEY)
    made = _run(environment, "keys", "create", "--role", "auditor", "--name", "an office", "--account", "people")
    assert made.returncode == 0, made.stderr
    key_id, token = made.stdout.split()
    assert f"{key_id}  auditor   an office  valid" in _run(environment, "keys", "list").stdout
    with _serving(environment) as (process, client):
        headers = {"Authorization": f"Bearer {token}"}
        assert client.get("/v1/accounts", headers=headers).json() == {"items": [], "next_cursor": None}
        assert client.post("/v1/accounts", headers=headers, json=_ACCOUNT).status_code == 403
        assert _run(environment, "keys", "revoke", key_id).returncode == 0
        assert client.get("/v1/accounts", headers=headers).status_code == 401
        _stop(process)
    again = _run(environment, "keys", "revoke", "no-such-key")
    assert (again.returncode, again.stderr) == (1, "error: there is no key 'no-such-key'\n")


def test_a_database_of_another_secret_is_refused(tmp_path: Path) -> None:
    environment = _environment(tmp_path, SERVICE_BOOTSTRAP_KEY=_KEY)
    assert _run(environment, "keys", "list").returncode == 0
    (tmp_path / "service.secret").unlink()
    refused = _run(environment, "serve")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: the secret file is not the one")
    assert "Traceback" not in refused.stderr


def test_a_short_bootstrap_key_is_refused_without_being_shown(tmp_path: Path) -> None:
    refused = _run(_environment(tmp_path, SERVICE_BOOTSTRAP_KEY="too-short"), "serve")
    assert refused.returncode == 1
    assert "SERVICE_BOOTSTRAP_KEY" in refused.stderr
    assert "too-short" not in refused.stderr


def test_migrating_an_embedded_database_and_one_of_a_server(tmp_path: Path, empty_database_url: str) -> None:
    environment = _environment(tmp_path, SERVICE_DATABASE_URL=empty_database_url, SERVICE_BOOTSTRAP_KEY=_KEY)
    for _ in range(2):
        migrated = _run(environment, "migrate")
        assert (migrated.returncode, migrated.stdout) == (0, "The database is migrated.\n"), migrated.stderr
    with _serving(environment) as (process, client):
        assert client.post("/v1/accounts", json=_ACCOUNT).status_code == 201
        _stop(process)


def test_the_contract_is_printed(tmp_path: Path) -> None:
    printed = _run(_environment(tmp_path), "openapi")
    assert yaml.safe_load(printed.stdout) == yaml.safe_load((_ROOT / "openapi.yaml").read_text(encoding="utf-8"))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("arguments", [("serve", "--port", "0"), ("keys", "create", "--role", "king", "--name", "x")])
def test_wrong_arguments_are_explained(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    refused = _run(_environment(tmp_path), *arguments)
    assert refused.returncode == 2
    assert "Invalid value" in refused.stderr
