"""One day on a real server: every operation of the contract with the example of its request, and what it answers.

``python -m tests.first_day`` records the answers, which are then the examples of the contract
(``service/api/openapi/answers.json``); ``tests/test_contract.py`` lives through the day again and compares.
"""

import contextlib
import csv
import io
import json
import re
import socket
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from service.api.openapi import examples
from tests.api.calls import STEWARD, bearer, contract, problem_of
from tests.documents import normalised
from tests.processes import PATIENCE, Served, service

RECORD = Path(examples.__file__).with_name("answers.json")
PANEL_ACCOUNT = {
    "name": "labour-force-survey",
    "unit": "person",
    "neighbouring": "add_remove",
    "budget": {"definition": "zcdp", "rho": "1"},
    "periods": {"calendar": "month", "participation": {"offsets": [0, 1, 2, 3, 12, 13, 14, 15]}},
}
PANEL_RELEASE = {
    "name": "unemployment",
    "plan": {"type": "discrete_gaussian", "name": "unemployed", "rho": "0.05"},
    "periods": {"from": "2026-01", "to": "2026-03"},
}
# So that problems of too much are cheap to have; the second steward can still see that the process ends.
SETTINGS = {"max_json_bytes": "100000", "failure_rate": "3/minute", "body_seconds": "1", "drain_seconds": "5"}
_OPAQUE = {
    "key",
    "secret",
    "milliseconds",
    "next_cursor",
    "signature",
    "public_key",
    "installation",
    "event",
    "noisy_counts",
}
# What is noise, or estimated from random samples of twenty residuals; of the examples' noise and residuals less than
# one pair in 10^20 lies further apart.
_RANDOM = {"noisy", "adjusted", "l1", "l2", "interval", "bias", "mean", "epsilon_lower_bound"}
_STRAY = 200
_ENTRY = re.compile(r"totals-[0-9a-f]{8}\b")  # the end of a registry entry's address


class Day:
    """Requests to a server, with what it answered.

    Attributes:
        answers: by operation, status and media type.
        problems: by code.
    """

    def __init__(self, served: Served) -> None:
        self.served, self.names = served, dict[str, str]()
        self.answers: dict[str, dict[str, dict[str, Any]]] = {}
        self.problems: dict[str, Any] = {}
        self._operations = {
            operation["operationId"]: (method, path, operation)
            for path, methods in contract()["paths"].items()
            for method, operation in methods.items()
        }

    def ask(
        self,
        operation: str,
        keep: bool = True,
        key: str = STEWARD,
        body: Any = None,
        accept: str = "application/json",
        **query: Any,
    ) -> Any:
        """The answer to an operation, which must succeed: with the example of its body unless another is given."""
        answer = self._send(operation, key, body, query, {"Accept": accept})
        assert answer.is_success, f"{operation}: {answer.text}"
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        value = answer.json() if media_type == "application/json" else answer.text
        if keep and answer.text:
            self.answers.setdefault(operation, {}).setdefault(str(answer.status_code), {})[media_type] = value
        return value

    def refuse(self, code: str, operation: str, key: str = STEWARD, body: Any = None, **headers: str) -> None:
        """Have a problem as the answer to an operation."""
        answer = self._send(operation, key, body, {}, headers)
        self.problems[code] = problem_of(answer, code)

    def _send(
        self, operation: str, key: str, body: Any, query: dict[str, Any], headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        method, path, described = self._operations[operation]
        if body is None and "requestBody" in described:
            body = described["requestBody"]["content"]["application/json"]["example"]
        sent = {name.replace("_", "-"): value for name, value in (headers or {}).items()} | bearer(key)
        content = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json"} | sent if content else sent
        address = path.format_map(self.names)
        return self.served.client.request(method, address, params=query, content=content, headers=sent)


def live(day: Day) -> None:
    """All of it, in the order of a first day."""
    day.ask("healthz")
    day.ask("readyz")
    day.ask("read_principal")
    day.ask("read_installation")
    for planned in ("compose", "convert", "calibrate_to_margin", "calibrate_to_guarantee", "calibrate_threshold"):
        day.ask(planned)
    for planned in ("compare", "allocate", "tell_accuracy", "draw_curve", "rake", "project"):
        day.ask(planned)
    day.names["account"] = day.ask("open_account")["name"]
    day.ask("list_accounts")
    day.ask("list_accounts", accept="text/csv")
    day.ask("read_account")
    day.ask("change_account")
    _keep_scenarios(day)
    _release(day)
    _count_by_periods(day)
    _settle(day)
    _draw(day)
    _hand_out_keys(day)
    _notify(day)
    _approve(day)
    _measure(day)
    _publish(day)
    _be_refused(day)
    _end(day)


def _keep_scenarios(day: Day) -> None:
    day.names["scenario"] = day.ask("save_scenario")["id"]
    day.ask("list_scenarios")
    day.ask("list_scenarios", accept="text/csv")
    day.ask("read_scenario")
    day.ask("replace_scenario")
    day.ask("delete_scenario")


def _release(day: Day) -> None:
    day.ask("count_capacity")
    day.ask("register_release", dry_run="true")
    day.names["release"] = day.ask("register_release")["id"]
    day.ask("list_releases")
    day.ask("list_releases", accept="text/csv")
    day.ask("find_releases", with_plan="false")
    day.ask("find_releases", with_plan="false", accept="text/csv")
    day.ask("read_release", with_charge="true")
    day.names["draw"] = day.ask("draw_mechanism")["draw"]
    day.ask("state_accuracy", confidence="0.9")
    day.ask("state_accuracy", confidence="0.9", accept="text/csv")
    day.ask("state_family_accuracy", confidence="0.9")
    day.ask("state_family_accuracy", confidence="0.9", accept="text/csv")
    day.ask("list_draws")
    day.ask("list_draws", accept="text/csv")
    day.ask("read_draw")
    day.ask("read_draw", accept="text/csv")
    day.ask("read_balance", delta="1e-10")
    day.ask("read_history")
    day.ask("read_history", accept="text/csv")
    day.ask("read_shares", by="tag")
    day.ask("read_shares", by="tag", accept="text/csv")
    day.ask("report_account", since="2026-01-01T00:00:00Z")
    day.ask("report_account", since="2026-01-01T00:00:00Z", accept="text/csv")
    day.ask("read_journal", limit=2)
    day.ask("read_journal", limit=2, accept="text/csv")
    day.ask("read_head")
    day.ask("verify_account")
    day.ask("read_receipt")
    day.ask("download_package", keep=False, accept="application/zip")
    day.ask("export_account")


def _count_by_periods(day: Day) -> None:
    """Charge an account with periods."""
    account = day.names["account"]
    day.names["account"] = day.ask("open_account", keep=False, body=PANEL_ACCOUNT)["name"]
    day.ask("register_release", keep=False, body=PANEL_RELEASE)
    day.ask("list_periods", limit=2)
    day.ask("list_periods", limit=2, accept="text/csv")
    day.names["account"] = account


def _settle(day: Day) -> None:
    plan = {"type": "geometric", "name": "Tract/total", "epsilon": "0.05"}
    first = day.names["release"]
    for name, settle in (("tract totals", "commit_release"), ("tract totals, revised", "void_release")):
        held = {"name": name, "plan": plan, "reserve_for": "P30D"}
        day.names["release"] = day.ask("register_release", keep=False, body=held)["id"]
        day.ask(settle)
    day.names["release"] = first


def _draw(day: Day) -> None:
    day.ask("register_batch", dry_run="true")
    day.ask("register_batch")
    day.ask("register_and_draw")
    day.ask("draw_histogram")
    levels = {"name": "Detailed DHC-A", "plan": day.ask("plan_safetab")["plan"]}
    first = day.names["release"]
    day.ask("change_account", keep=False, body={"budget": {"definition": "zcdp", "rho": "12"}})
    day.names["release"] = day.ask("register_release", keep=False, body=levels)["id"]
    day.ask("tabulate_groups")
    best = {"name": "largest county", "plan": {"type": "exponential", "epsilon": "0.1", "scores": "monotone"}}
    day.names["release"] = day.ask("register_release", keep=False, body=best)["id"]
    day.ask("select_candidate")
    day.names["release"] = first


def _hand_out_keys(day: Day) -> None:
    made = day.ask("create_key")
    day.names |= {"key": made["id"], "pipeline": made["key"]}
    steward = day.ask("create_key", keep=False, body={"name": "second-steward", "role": "steward"})
    day.names["steward"] = steward["key"]
    day.ask("list_keys")
    day.ask("list_keys", accept="text/csv")


def _notify(day: Day) -> None:
    """Send a test to a name that has no address, which the log of its delivery says."""
    day.names["webhook"] = day.ask("make_webhook")["id"]
    day.ask("list_webhooks")
    day.ask("list_webhooks", accept="text/csv")
    day.ask("read_webhook")
    day.names["delivery"] = day.ask("test_webhook")["id"]
    deadline = time.monotonic() + PATIENCE
    while not day.ask("list_deliveries", keep=False)["items"][0]["tries"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    day.ask("list_deliveries")
    day.ask("list_deliveries", accept="text/csv")
    day.ask("change_webhook")
    day.ask("rotate_webhook")
    _fail(day)
    day.ask("retry_delivery")
    day.ask("delete_webhook")


def _fail(day: Day) -> None:
    """Let the day's message have failed, as after a day of tries."""
    with contextlib.closing(sqlite3.connect(day.served.home / "data" / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE deliveries SET state = 'failed', due_at = NULL")


def _approve(day: Day) -> None:
    day.ask("change_account", keep=False, body={"approval_above": "0.5"})
    day.ask("change_account", keep=False, body={"approvers": {"at_least": 1, "of": ["second-steward"]}})
    day.ask("change_account", body={"budget": {"definition": "zcdp", "rho": "13"}})  # it waits for the approver
    waits = day.ask("read_account", keep=False)["proposed_change"]["seq"]
    day.ask("reject_change", body=examples.REJECTION | {"proposal": waits})
    large = {"name": "block totals", "plan": {"type": "discrete_gaussian", "name": "Block/total", "rho": "0.6"}}
    first = day.names["release"]
    day.names["release"] = day.ask("register_release", keep=False, body=large)["id"]
    day.ask("list_proposals")
    day.ask("list_proposals", accept="text/csv")
    day.ask("approve_release", key=day.names["steward"])
    day.ask("list_events")
    day.ask("list_events", accept="text/csv")
    day.names["release"] = first


def _measure(day: Day) -> None:
    day.ask("measure_loss")
    day.ask("bound_from_below")
    day.names["job"] = day.ask("run_experiment")["id"]
    deadline = time.monotonic() + PATIENCE
    while day.ask("read_job")["state"] in ("queued", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    day.ask("list_jobs")
    day.ask("list_jobs", accept="text/csv")
    day.names["job"] = day.ask("run_experiment", keep=False)["id"]
    day.ask("end_job")


def _publish(day: Day) -> None:
    day.refuse("incomplete", "read_release_entry")
    day.ask("describe_release")
    day.ask("read_release_entry")
    day.ask("read_release_entry", accept="application/yaml")
    day.ask("change_account", keep=False, body=examples.RELEASE_CHANGE)
    day.ask("read_account_entry")
    day.ask("read_account_entry", accept="application/yaml")


def _be_refused(day: Day) -> None:
    plan = {"type": "repeat", "count": 63, "part": {"type": "geometric", "epsilon": "0.8"}}
    nothing = "1:" + "0" * 64
    day.refuse("validation", "open_account", body={"name": "Persons!", "unit": "person"})
    day.refuse("conflict", "open_account")
    day.refuse("budget_exceeded", "register_release", body={"name": "everything", "plan": plan})
    day.refuse("already_drawn", "draw_mechanism")
    day.refuse("ledger_rolled_back", "read_account", If_Ledger_Includes=nothing)
    day.refuse("unsupported_media_type", "open_account", Content_Type="text/csv")
    day.refuse("not_acceptable", "list_accounts", Accept="application/xml")
    day.refuse("too_large", "open_account", body={"description": "x" * int(SETTINGS["max_json_bytes"])})
    day.refuse("forbidden", "change_account", key=day.names["pipeline"])
    account = day.names["account"]
    day.names["account"] = "pl94-2020-us-households"
    day.refuse("not_found", "read_account")
    day.names["account"] = account
    day._send("create_key", STEWARD, {"name": "auditor", "role": "auditor"}, {}, {"Idempotency_Key": "auditors"})
    day.refuse("idempotency_conflict", "create_key", Idempotency_Key="auditors")
    day.refuse("unauthenticated", "list_accounts", key="unknown")
    for _ in range(10):
        answer = day._send("list_accounts", "unknown", None, {})
        if answer.status_code == 429:
            day.problems["too_many_requests"] = problem_of(answer, "too_many_requests")
    day.problems["too_slow"] = _too_slow(day)


def _too_slow(day: Day) -> Any:
    """The answer to a body that does not come."""
    host = urlsplit(day.served.address)
    with contextlib.closing(socket.create_connection((host.hostname, host.port), PATIENCE)) as connection:
        head = f"POST /v1/accounts HTTP/1.1\r\nHost: {host.netloc}\r\nAuthorization: Bearer {STEWARD}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        connection.sendall(head.encode())
        received = b""
        while not received.rstrip().endswith(b"}"):
            piece = connection.recv(1 << 16)
            assert piece, received
            received += piece
    return json.loads(received.partition(b"\r\n\r\n")[2])


def _end(day: Day) -> None:
    rotated = day.ask("rotate_key")
    day.names["key"] = rotated["id"]
    day.ask("revoke_key")
    day.served.process.terminate()
    deadline = time.monotonic() + PATIENCE
    while (answer := day.served.client.get("/readyz")).status_code != 503:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    day.problems["unavailable"] = problem_of(answer, "unavailable")


def lived(home: Path) -> dict[str, Any]:
    """The record of a day on a new server, as the file has it."""
    with service(home, helper_processes="2", **SETTINGS) as served:
        day = Day(served)
        live(day)
    return {"answers": day.answers, "problems": day.problems}


def differences(expected: Any, got: Any, at: str = "") -> list[str]:
    """Return where two records differ by more than ids, hashes, times, keys, cursors and noise."""
    name = at.rpartition("/")[2]
    if name in _OPAQUE:
        return [] if isinstance(got, type(expected)) else [at]
    if name == "x-ndjson" and isinstance(expected, str):
        expected, got = ([json.loads(line) for line in text.splitlines()] for text in (expected, got))
    if name == "csv" and isinstance(expected, str):
        expected, got = (list(csv.DictReader(io.StringIO(text, newline=""))) for text in (expected, got))
    match expected, got:
        case dict(), dict():
            missing = [f"{at}/{key}" for key in sorted(expected.keys() ^ got.keys())]
            common = [key for key in expected if key in got]
            return missing + [each for key in common for each in differences(expected[key], got[key], f"{at}/{key}")]
        case list(), list() if len(expected) == len(got):
            return [each for one, other in zip(expected, got, strict=True) for each in differences(one, other, at)]
        case ((int() | float()), (int() | float())) if name in _RANDOM and abs(expected - got) <= _STRAY:
            return []
        case str(), str() if name in _RANDOM:  # packed, in an export
            return []
        case ((None | str()), (None | str())) if name == "last_used_at":  # which is written behind the requests
            return []
    texts = [_ENTRY.sub("<entry>", normalised(json.dumps(value))) for value in (expected, got)]
    return [] if texts[0] == texts[1] else [f"{at}: {texts[0]}, {texts[1]}"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        RECORD.write_text(json.dumps(lived(Path(directory)), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
