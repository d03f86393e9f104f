"""The Helm chart, linted and rendered by Helm's own engine; the objects are checked by the schemas of Kubernetes."""

import importlib
from typing import Any

import pytest
import yaml

from service.server import files_needed
from service.settings import Settings, read_settings, unknown_variables
from tests.chart.test_values import CHART, EXAMPLES, complete, example, merged

pytestmark = pytest.mark.chart

_KUBERNETES = ("1.27", "1.37")  # the oldest that the chart allows, and the newest that is known
_Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def helm() -> Any:
    """Helm's engine, which only `make test-chart` installs."""
    return importlib.import_module("helm_python")


@pytest.fixture(scope="module")
def kubernetes() -> Any:
    return importlib.import_module("kubernetes_validate")


def _rendered(helm: Any, values: dict[str, Any], release: str = "prod") -> _Objects:
    """Return the objects by kind and name."""
    with helm.Chart.load(str(CHART)) as chart:
        texts = chart.render(values, name=release, namespace="ledger")
    objects = [one for name, text in texts.items() if name.endswith(".yaml") for one in yaml.safe_load_all(text) if one]
    named = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(named) == len(objects), "two objects of one name"
    return named


def _only(objects: _Objects, kind: str) -> dict[str, Any]:
    (found,) = [one for (its, _), one in objects.items() if its == kind]
    return found


def _pods(objects: _Objects) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for (kind, _), one in objects.items() if kind in {"StatefulSet", "Job"}]


def _containers(objects: _Objects) -> list[dict[str, Any]]:
    return [one for pod in _pods(objects) for one in [*pod.get("initContainers", []), *pod["containers"]]]


def _environment(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def _server(objects: _Objects) -> dict[str, Any]:
    (container,) = _only(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def _settings(objects: _Objects) -> Settings:
    secrets = {one["name"]: "s" * 40 for one in _server(objects)["env"] if "valueFrom" in one}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (secrets | _environment(_server(objects))).items():
            patch.setenv(name, value)
        assert unknown_variables() == {}
        return read_settings()


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_finds_nothing_to_complain_of(helm: Any, name: str) -> None:
    found = helm.lint(str(CHART), values=example(name), strict=True)
    assert found["errors"] == []
    assert [one["error"] for one in found["messages"]] == ["icon is recommended"]


def test_helm_refuses_what_the_schema_refuses(helm: Any) -> None:
    for changes, place in (({"misspelt": 1}, "misspelt"), ({"image": {"digest": ""}}, "/image/digest")):
        with pytest.raises(helm.HelmValuesError, match=place):
            _rendered(helm, merged(example("postgresql"), changes))
    with pytest.raises(helm.HelmValuesError, match="/installationSecret/name"):
        _rendered(helm, {})


@pytest.mark.parametrize("version", _KUBERNETES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_objects_are_those_of_kubernetes(helm: Any, kubernetes: Any, name: str, version: str) -> None:
    objects = _rendered(helm, example(name))
    known = [one for one in objects.values() if not one["apiVersion"].startswith("monitoring.coreos.com/")]
    assert len(known) == {"postgresql": 8, "sqlite": 4}[name]
    for one in known:
        kubernetes.validate(one, version, strict=True)
        with pytest.raises(kubernetes.ValidationError):
            kubernetes.validate(one | {"misspelt": 1}, version, strict=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_container_is_confined(helm: Any, name: str) -> None:
    objects = _rendered(helm, example(name))
    for pod in _pods(objects):
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, "they would be unknown SERVICE_ variables"
        volumes = [volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume]
        assert all(volume["medium"] == "Memory" and volume["sizeLimit"] for volume in volumes), "nothing is on a disk"
    containers = _containers(objects)
    assert len(containers) == {"postgresql": 3, "sqlite": 1}[name]
    for container in containers:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert "@sha256:" in container["image"]
        resources = container["resources"]
        assert resources["requests"] == resources["limits"], "a pod that is not guaranteed may be swapped to a disk"
        assert set(resources["limits"]) == {"cpu", "memory"}


_SMALL = {
    "limits": {"jsonBytesAtOnce": 67108865, "arrowBytesAtOnce": 1073741824, "helperProcesses": 0, "connections": 7}
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("changes", [{}, _SMALL, {"limits": {"helperProcesses": 5, "jsonBytes": 1000}}])
def test_the_memory_is_what_the_settings_need(helm: Any, name: str, changes: dict[str, Any]) -> None:
    objects, values = _rendered(helm, merged(example(name), changes)), complete(name, **changes)
    settings = _settings(objects)
    limits = values["limits"]
    assert settings.max_json_bytes == limits["jsonBytes"]
    assert settings.resolved_json_bytes_at_once == limits["jsonBytesAtOnce"]
    assert settings.resolved_arrow_bytes_at_once == limits["arrowBytesAtOnce"]
    assert (settings.max_connections, settings.helper_processes) == (limits["connections"], limits["helperProcesses"])
    in_memory = 65 * 2**20  # /tmp, and /data where nothing is kept
    needed = settings.most_memory + settings.most_memory_of_helpers + limits["experimentBytes"] + in_memory
    assert int(_server(objects)["resources"]["limits"]["memory"]) == needed
    assert files_needed(settings) < 65_536, "what container engines allow"


def test_the_default_memory_is_what_the_comment_says(helm: Any) -> None:
    memory = int(_server(_rendered(helm, example("postgresql")))["resources"]["limits"]["memory"])
    assert f"{memory / 2**30:.1f} GiB here" in (CHART / "values.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_pod_ends_after_its_server(helm: Any, name: str) -> None:
    objects = _rendered(helm, merged(example(name), {"drainSeconds": 20, "shutdownSeconds": 600}))
    settings = _settings(objects)
    grace = _only(objects, "StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > settings.drain_seconds + settings.shutdown_seconds
    readiness = _server(objects)["readinessProbe"]
    default = _settings(_rendered(helm, example(name)))
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < default.drain_seconds


def test_probes_and_ports(helm: Any) -> None:
    container = _server(_rendered(helm, example("postgresql")))
    paths = {probe: container[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")}
    assert {probe: get["path"] for probe, get in paths.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {get["port"] for get in paths.values()} == {"http"}
    assert container["command"][-2:] == ["--port", str(container["ports"][0]["containerPort"])]


def test_secrets_are_only_named(helm: Any) -> None:
    """The chart makes none, and no value of one is in an object."""
    objects = _rendered(helm, example("postgresql"))
    assert not [kind for kind, _ in objects if kind == "Secret"]
    for container in _containers(objects):
        for one in container["env"]:
            if any(word in one["name"] for word in ("PASSWORD", "KEY")):
                assert set(one["valueFrom"]) == {"secretKeyRef"}
    pod = _only(objects, "StatefulSet")["spec"]["template"]["spec"]
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert secret["defaultMode"] == 0o440, "the service refuses a secret that every user can read"
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    mounted = {one["mountPath"] for one in _server(objects)["volumeMounts"] if one["name"] == "secret"}
    settings = _settings(objects)
    assert {str(settings.resolved_secret_file.parent)} == mounted


@pytest.mark.parametrize(("name", "kept"), [("postgresql", {"mark"}), ("sqlite", {"mark", "data"})])
def test_what_must_last_is_on_volumes_that_stay(helm: Any, name: str, kept: set[str]) -> None:
    objects = _rendered(helm, example(name))
    spec = _only(objects, "StatefulSet")["spec"]
    assert {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]} == kept
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    places = {one["name"]: one["mountPath"] for one in _server(objects)["volumeMounts"]}
    assert str(_settings(objects).resolved_high_water_file.parent) == places["mark"]
    assert places["data"] == "/data"  # of the image's SERVICE_DATA_DIR
    assert {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]} | {
        volume["name"] for volume in spec["template"]["spec"]["volumes"]
    } == set(places)


def test_a_migration_replaces_servers_that_are_not_ready(helm: Any) -> None:
    """It runs as the owner, and states the rights of the servers' role; servers never have the owner's password."""
    objects = _rendered(helm, example("postgresql"))
    assert _only(objects, "StatefulSet")["spec"]["podManagementPolicy"] == "Parallel"
    job = _only(objects, "Job")
    pod = job["spec"]["template"]["spec"]
    (migrate,), (roles,) = pod["initContainers"], pod["containers"]
    assert migrate["command"] == ["python", "-m", "service", "migrate"]
    assert (
        "//ledger@postgres.database.svc:5432/ledger?sslmode=verify-full"
        in _environment(migrate)["SERVICE_DATABASE_URL"]
    )
    assert _environment(roles)["PGUSER"] == "ledger"
    passwords = [one for one in roles["env"] if "valueFrom" in one]
    assert {one["name"]: one["valueFrom"]["secretKeyRef"]["name"] for one in passwords} == {
        "PGPASSWORD": "ledger-owner",
        "LEDGER_PASSWORD": "ledger-application",
    }
    assert "ledger-owner" not in str(_only(objects, "StatefulSet"))
    config = _only(objects, "ConfigMap")
    assert config["data"]["postgres-roles.sql"].strip() == (CHART / "files" / "postgres-roles.sql").read_text().strip()
    hooks = [one for one in objects.values() if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    weights = {one["kind"]: int(one["metadata"]["annotations"]["helm.sh/hook-weight"]) for one in hooks}
    assert weights["Job"] > max(weights["ConfigMap"], weights["NetworkPolicy"])
    used = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert used == {config["metadata"]["name"], "postgres-authority"}


def test_policies_select_the_servers(helm: Any) -> None:
    """The services, the budget of disruptions, the network policies and the monitor find what they are for."""
    objects = _rendered(helm, example("postgresql"))
    servers = _only(objects, "StatefulSet")
    labels = servers["spec"]["template"]["metadata"]["labels"]
    migration = _only(objects, "Job")["spec"]["template"]["metadata"]["labels"]

    def selects(selector: dict[str, str], these: dict[str, str]) -> bool:
        return selector.items() <= these.items()

    services = [one for (kind, _), one in objects.items() if kind == "Service"]
    selectors = [one["spec"]["selector"] for one in services]
    selectors += [_only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]]
    policies = {one["metadata"]["name"]: one["spec"] for (kind, _), one in objects.items() if kind == "NetworkPolicy"}
    selectors += [policies["prod-ledger"]["podSelector"]["matchLabels"]]
    assert all(selects(one, labels) and not selects(one, migration) for one in selectors)
    only_migration = policies["prod-ledger-migration"]["podSelector"]["matchLabels"]
    assert selects(only_migration, migration)
    assert not selects(only_migration, labels)
    for policy in policies.values():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policies["prod-ledger-migration"]
    assert [len(rule["from"]) for rule in policies["prod-ledger"]["ingress"]] == [2]
    monitor = _only(objects, "ServiceMonitor")["spec"]
    (found,) = [one for one in services if selects(monitor["selector"]["matchLabels"], one["metadata"]["labels"])]
    assert {one["port"] for one in monitor["endpoints"]} <= {port["name"] for port in found["spec"]["ports"]}
    assert monitor["endpoints"][0]["path"] == "/metrics"
    assert servers["spec"]["serviceName"] in {one["metadata"]["name"] for one in services}


def test_what_is_switched_off_is_not_there(helm: Any) -> None:
    off: dict[str, Any] = {
        name: {"enabled": False} for name in ("networkPolicy", "podDisruptionBudget", "serviceMonitor")
    }
    objects = _rendered(helm, merged(example("postgresql"), off, {"migration": {"enabled": False}}))
    assert {kind for kind, _ in objects} == {"Service", "StatefulSet"}
    one = _rendered(helm, merged(example("postgresql"), {"replicas": 1}))
    assert "PodDisruptionBudget" not in {kind for kind, _ in one}, "a node could never be drained"


def test_maintenance_starts_no_server(helm: Any) -> None:
    container = _server(_rendered(helm, merged(example("sqlite"), {"maintenance": True})))
    assert "serve" not in container["command"]
    assert not [key for key in container if key.endswith("Probe")]


@pytest.mark.parametrize("release", ["a" * 53, "privacy-budget-ledger", "x"])
def test_names_fit(helm: Any, release: str) -> None:
    for _, name in _rendered(helm, example("postgresql"), release):
        assert len(name) < 63
        assert name.startswith(release[:30])


@pytest.mark.parametrize("peers", [[], [{"ipBlock": {"cidr": "10.0.0.5/32"}}]])
def test_the_database_may_be_anywhere_or_at_named_peers(helm: Any, peers: list[dict[str, Any]]) -> None:
    objects = _rendered(helm, merged(example("postgresql"), {"networkPolicy": {"database": peers, "egress": []}}))
    rules = [one["spec"]["egress"] for (kind, _), one in objects.items() if kind == "NetworkPolicy"]
    assert [[port["port"] for port in rule["ports"]] for rule in rules[0]] == [[53, 53], [5432]]
    assert all(rule[1].get("to", []) == peers for rule in rules)
