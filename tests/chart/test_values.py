"""The values of the Helm chart: what they may be, and that they agree with the service's settings and files."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import service
from service.settings import Settings
from tests.processes import ROOT

CHART = ROOT / "deploy" / "helm" / "privacy-budget-ledger"
EXAMPLES = ("postgresql", "sqlite")
_SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
_WRITTEN_BY_THE_CHART = set("".join(path.read_text() for path in (CHART / "templates").iterdir()).split())


def example(name: str) -> dict[str, Any]:
    """Return the values of an example beside the chart."""
    values: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text(encoding="utf-8"))
    return values


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: dictionaries by their keys, the later layer first; lists and texts as a whole."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in deepcopy(layer).items():
            below = result.get(key)
            result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def complete(name: str, **changes: Any) -> dict[str, Any]:
    """Return the chart's values with those of an example and with changes."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return merged(defaults, example(name), changes)


def _faults(values: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(_SCHEMA)
    return ["/".join(map(str, error.absolute_path)) for error in validator.iter_errors(values)]


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(_SCHEMA)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_accepted(name: str) -> None:
    assert _faults(complete(name)) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_unknown_values_are_refused_at_every_level(name: str) -> None:
    values = complete(name)
    own = {"nodeSelector", "settings", "labels"}  # names of others

    def levels(at: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        below = [levels(value, (*path, key)) for key, value in at.items() if isinstance(value, dict) and key not in own]
        return [path, *(one for each in below for one in each)]

    found = levels(values)
    assert len(found) > 15
    for path in found:
        changed = deepcopy(values)
        place = changed
        for key in path:
            place = place[key]
        place["misspelt"] = 1
        assert _faults(changed) == ["/".join(path)], path


@pytest.mark.parametrize(
    ("name", "changes", "place"),
    [
        ("postgresql", {"image": {"digest": "latest"}}, "image/digest"),
        ("postgresql", {"image": {"repository": "registry.example/ledger@sha256:0"}}, "image/repository"),
        ("postgresql", {"migration": {"psqlImage": "postgres:18"}}, "migration/psqlImage"),
        ("postgresql", {"installationSecret": {"name": ""}}, "installationSecret/name"),
        ("postgresql", {"database": {"host": ""}}, "database/host"),
        ("postgresql", {"database": {"host": "user:password@host"}}, "database/host"),
        ("postgresql", {"database": {"user": "ledger:password"}}, "database/user"),
        ("postgresql", {"database": {"password": {"name": ""}}}, "database/password/name"),
        ("postgresql", {"database": {"authority": {"configMap": ""}}}, "database/authority/configMap"),
        ("postgresql", {"database": {"sslmode": "prefer"}}, "database/sslmode"),
        ("postgresql", {"migration": {"password": {"name": ""}}}, "migration/password/name"),
        ("postgresql", {"trustedProxies": "proxy.example"}, "trustedProxies"),
        ("postgresql", {"settings": {"SERVICE_MAX_CONECTIONS": "600"}}, "settings"),
        ("postgresql", {"settings": {"SERVICE_MAX_CONNECTIONS": "600"}}, "settings"),  # the chart sets it
        ("postgresql", {"settings": {"SERVICE_MAX_WORK": 100}}, "settings/SERVICE_MAX_WORK"),
        ("postgresql", {"networkPolicy": {"from": []}}, "networkPolicy/from"),
        ("postgresql", {"limits": {"connections": 0}}, "limits/connections"),
        ("sqlite", {"replicas": 2}, "replicas"),
    ],
)
def test_values_that_would_not_serve_are_refused(name: str, changes: dict[str, Any], place: str) -> None:
    assert _faults(complete(name, **changes)) == [place]


def test_values_without_a_use_may_stay_empty() -> None:
    by_hand = {"migration": {"enabled": False, "password": {"name": ""}}}
    plain = {"database": {"sslmode": "require", "authority": {"configMap": ""}}}
    open_to_all = {"networkPolicy": {"enabled": False, "from": []}}
    assert _faults(complete("postgresql", **by_hand, **plain, **open_to_all)) == []


def test_every_setting_is_the_charts_or_may_be_given() -> None:
    """A setting that is new is in the schema, and one that the chart writes is not."""
    given = set(_SCHEMA["properties"]["settings"]["properties"])
    known = {f"SERVICE_{name.upper()}" for name in Settings.model_fields}
    own = {name for name in known if name in _WRITTEN_BY_THE_CHART}
    assert given & own == set()
    assert given | own == known - {"SERVICE_DATA_DIR"}  # the image's own
    assert len(own) > 8


def test_the_chart_has_the_services_version_and_the_script_of_the_roles() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == service.__version__
    # A copy, because Helm packages no file outside the chart, and the repository has no links.
    script = Path("postgres-roles.sql")
    assert (CHART / "files" / script).read_bytes() == (ROOT / "deploy" / script).read_bytes(), f"copy {script} again"


def test_others_images_are_those_of_compose() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    assert complete("postgresql")["migration"]["psqlImage"] == compose["services"]["roles"]["image"]
