"""The files for operators: what the dashboard and the alerts ask Prometheus for is what the service tells it."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import make_url

from service.api.http.problems import KINDS
from service.cli.configuration import reference
from service.ledger.storage.database import open_database
from service.ledger.storage.secret import Secret
from service.server import files_needed
from service.settings import Settings, read_settings, unknown_variables
from tests.api.calls import application, charge, client_of, json_of, open_account, pure, release

_ROOT = Path(__file__).resolve().parents[1]
_DASHBOARD: dict[str, Any] = json.loads((_ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
_ALERTS: dict[str, Any] = yaml.safe_load((_ROOT / "deploy" / "prometheus-alerts.yaml").read_text(encoding="utf-8"))
_GIVEN = {"job", "instance", "le"}  # by Prometheus, or of every histogram
_SELECTOR = re.compile(r"\b((?:ledger|process)_[a-z_]+)(?:\{([^}]*(?:\{account\}[^}]*)*)\})?")
_LABEL = re.compile(r"([a-z_]+)\s*(=~|=|!=|!~)\s*\"([^\"]*)\"")
_GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def _expressions() -> list[str]:
    panels = [target["expr"] for panel in _DASHBOARD["panels"] for target in panel.get("targets", ())]
    return panels + [rule["expr"] for group in _ALERTS["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def told(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """Of each metric the labels with their values, of a service that has done a little of everything."""
    path = tmp_path_factory.mktemp("told") / "ledger.db"
    shutil.copyfile(_sqlite_template, path)
    app = application(open_database(f"sqlite:///{path}"), Secret(bytes(range(32))), metrics_accounts="people")
    found: dict[str, dict[str, set[str]]] = {}
    with client_of(app) as client:
        open_account(client, budget={"definition": "pure", "epsilon": 1})
        release(client, pure("0.1"))
        assert charge(client, pure(2)).status_code == 409
        drawing = {"name": "x", "mechanism": pure("0.1"), "counts": [1]}
        json_of(client.post("/v1/accounts/people/draws", json=drawing), 201)
        for family in text_string_to_metric_families(client.get("/metrics").text):
            for sample in family.samples:
                labels = found.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    labels.setdefault(label, set()).add(value)
    return found


def _selectors() -> Iterator[tuple[str, str]]:
    for expression in _expressions():
        yield from _SELECTOR.findall(expression)


def test_every_metric_that_is_asked_for_is_told(told: dict[str, dict[str, set[str]]]) -> None:
    asked = {name for name, _ in _selectors()}
    assert len(asked) > 15
    assert asked - told.keys() == set()


def test_every_metric_of_the_ledger_is_on_the_dashboard(told: dict[str, dict[str, set[str]]]) -> None:
    asked = {name for name, _ in _selectors()}
    ours = {name for name in told if name.startswith("ledger_") and not name.endswith(("_created", "_sum"))}
    assert ours - asked == set()


def test_every_label_that_is_asked_for_is_told(told: dict[str, dict[str, set[str]]]) -> None:
    for name, selected in _selectors():
        for label, operator, value in _LABEL.findall(selected):
            assert label in told[name].keys() | _GIVEN, f"{name} has no {label}"
            if label == "kind" and name == "ledger_refusals_total":
                assert set(value.split("|")) <= KINDS.keys()
            elif label not in _GIVEN and operator == "=~" and label != "status":
                assert any(re.fullmatch(value.replace("{account}", r"\{account\}"), one) for one in told[name][label])
            elif label not in _GIVEN and operator == "=":
                assert value in told[name][label]
    labels = {label for of in told.values() for label in of} | _GIVEN
    for expression in _expressions():
        for grouped in _GROUPED.findall(expression):
            assert {label.strip() for label in grouped.split(",")} <= labels


def test_the_dashboard_can_be_read_by_grafana() -> None:
    ids = [panel["id"] for panel in _DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) > 15
    places = [tuple(panel["gridPos"].values()) for panel in _DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert all(width + left <= 24 for _, width, left, _ in places)
    variables = {variable["name"] for variable in _DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)", json.dumps(_DASHBOARD).replace("$__", "")))
    assert used == variables


def test_every_alert_says_how_grave_it_is_and_what_is_wrong() -> None:
    rules = [rule for group in _ALERTS["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 8
    for rule in rules:
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]


def test_the_guide_says_of_every_alert_what_to_do() -> None:
    names = [rule["alert"] for group in _ALERTS["groups"] for rule in group["rules"]]
    guide = (_ROOT / "service" / "web" / "guide" / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (\w+)$", guide, re.MULTILINE) == names
    for group in _ALERTS["groups"]:
        for rule in group["rules"]:
            place = f"/guide/alerts#{rule['alert'].lower()}"
            assert rule["annotations"]["description"] == f"What to do: {place} of the service"


def test_the_reference_of_the_settings_is_the_present_ones() -> None:
    committed = (_ROOT / "service" / "web" / "guide" / "configuration.md").read_text(encoding="utf-8")
    assert committed == reference()
    rows = [line for line in committed.splitlines() if line.startswith("| `SERVICE_")]
    assert [re.match(r"\| `SERVICE_(\w+)`", row)[1].lower() for row in rows] == list(Settings.model_fields)  # type: ignore[index]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)


_COMPOSE: dict[str, dict[str, Any]] = yaml.safe_load((_ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
_REPLICAS = ("service-1", "service-2", "service-3")
_UNITS = {"m": 2**20, "g": 2**30}


def _bytes(size: str) -> int:
    return int(size[:-1]) * _UNITS[size[-1]]


def _settings_of(name: str) -> Settings:
    given = {variable: value for variable, value in _COMPOSE[name]["environment"].items() if "$" not in value}
    with pytest.MonkeyPatch.context() as patch:
        for variable in [variable for variable in os.environ if variable.startswith("SERVICE_")]:
            patch.delenv(variable)
        for variable, value in given.items():
            patch.setenv(variable, value)
        assert unknown_variables() == {}
        return read_settings()


@pytest.mark.parametrize("name", _COMPOSE)
def test_every_container_is_confined(name: str) -> None:
    service = _COMPOSE[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["memswap_limit"] == service["mem_limit"], "true counts would be swapped to a disk"
    assert service["pids_limit"] > 0
    assert service["cpus"] > 0
    assert service["ulimits"]["core"] == 0
    assert all(re.fullmatch(r"/[a-z/]+:size=\d+m", place) for place in service.get("tmpfs", ()))


def test_images_of_others_are_pinned_by_their_digests() -> None:
    dockerfile = (_ROOT / "Dockerfile").read_text(encoding="utf-8")
    own = _COMPOSE["migrate"]["image"]
    others = {service["image"] for service in _COMPOSE.values()} - {own}
    others.update(re.findall(r"^FROM (.+)$", dockerfile, re.MULTILINE))
    assert len(others) == 3
    for image in others:
        assert re.fullmatch(r"[a-z]+:[0-9]+\.[0-9]+[^@]*@sha256:[0-9a-f]{64}", image)


@pytest.mark.parametrize("name", _REPLICAS)
def test_a_replica_has_what_its_settings_need(name: str) -> None:
    service, settings = _COMPOSE[name], _settings_of(name)
    beside = sum(int(place.partition("=")[2][:-1]) * 2**20 for place in service["tmpfs"]) + 2**30  # an experiment
    assert settings.most_memory + settings.most_memory_of_helpers + beside <= _bytes(service["mem_limit"])
    assert files_needed(settings) <= service["ulimits"]["nofile"]
    assert {place.partition(":")[0] for place in service["tmpfs"]} == {"/tmp", "/data"}


def test_the_proxy_and_the_database_have_what_their_connections_need() -> None:
    proxy = (_ROOT / "deploy" / "haproxy.cfg").read_text(encoding="utf-8")
    clients, servers = (int(number) for number in re.findall(r"\bmaxconn (\d+)", proxy))
    assert 2 * clients < _COMPOSE["proxy"]["ulimits"]["nofile"]
    assert all(servers < _settings_of(name).max_connections for name in _REPLICAS)
    (rate,) = re.findall(r"reject if \{ sc0_conn_rate gt (\d+) \}", proxy)
    assert {_settings_of(name).connection_rate for name in _REPLICAS} == {f"{rate}/second"}
    (most,) = re.findall(r"max_connections=(\d+)", " ".join(_COMPOSE["database"]["command"]))
    assert int(most) < _COMPOSE["database"]["pids_limit"]


def test_replicas_use_the_role_that_the_script_makes_after_the_owner_migrated() -> None:
    script = (_ROOT / "deploy" / "postgres-roles.sql").read_text(encoding="utf-8")
    owner = _COMPOSE["database"]["environment"]["POSTGRES_USER"]
    for name in _REPLICAS:
        service = _COMPOSE[name]
        role = make_url(service["environment"]["SERVICE_DATABASE_URL"]).username
        assert f"CREATE ROLE {role} LOGIN;" in script
        assert "LEDGER_PASSWORD" in service["environment"]["PGPASSWORD"]
        assert "POSTGRES_PASSWORD" not in json.dumps(service)
        assert service["depends_on"] == {"roles": {"condition": "service_completed_successfully"}}
    assert _COMPOSE["roles"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert "./deploy/postgres-roles.sql:/postgres-roles.sql:ro" in _COMPOSE["roles"]["volumes"]
    assert make_url(_COMPOSE["migrate"]["environment"]["SERVICE_DATABASE_URL"]).username == owner
    assert _COMPOSE["roles"]["environment"]["PGUSER"] == owner
