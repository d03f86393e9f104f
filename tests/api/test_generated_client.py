"""A Python client that a generator makes from openapi.yaml without a warning, and that runs the documents' examples."""

import csv
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tests.api.calls import STEWARD
from tests.api.conftest import serving

_ROOT = Path(__file__).resolve().parents[2]
_DEMO = _ROOT / "service" / "demo"
_PACKAGE = "privacy_budget_ledger_client"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the generated client, in a directory from which it is imported."""
    directory = tmp_path_factory.mktemp("generated")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning"]
    command += ["--path", str(_ROOT / "openapi.yaml"), "--output-path", str(directory / "client")]
    command += ["--config", str(_ROOT / "examples" / "python_client.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.strip().splitlines() == ["Generating " + str(directory / "client")]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(directory / "client")
        yield _PACKAGE
        for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
            del sys.modules[name]


class Generated:
    """The generated functions and models by name, called with one client."""

    def __init__(self, package: str, address: str, token: str) -> None:
        self._package = package
        self.models = importlib.import_module(f"{package}.models")
        client = importlib.import_module(f"{package}.client").AuthenticatedClient
        self.client = client(base_url=address, token=token, raise_on_unexpected_status=True, timeout=60)

    def __call__(self, operation: str, *path: str, **arguments: Any) -> Any:
        """Call an operation, ``tag.name``, and return its parsed answer."""
        module = importlib.import_module(f"{self._package}.api.{operation}")
        return module.sync(*path, client=self.client, **arguments)


@pytest.fixture
def call(app: FastAPI, generated: str) -> Iterator[Generated]:
    """Return a steward's generated client, over a socket, on each database."""
    with serving(app) as address:
        generated_client = Generated(generated, address, STEWARD)
        with generated_client.client:
            yield generated_client


def _open(call: Generated, name: str, budget: Any) -> Any:
    models = call.models
    relation = models.Neighbouring.REPLACE_ONE
    body = models.OpenAccount(name=name, unit="person", neighbouring=relation, budget=budget)
    return call("accounts.open_account", body=body)


def test_the_redistricting_release(call: Generated) -> None:
    models = call.models
    census = json.loads((_DEMO / "pl94_2020_us_persons.json").read_text(encoding="utf-8"))
    scale = Fraction(census["global_scale"])
    parts = [
        models.DiscreteGaussian(
            type_="discrete_gaussian",
            name=f"{level['geolevel']}/{query['name']}",
            sigma_squared=str(scale**2 / (Fraction(level["proportion"]) * Fraction(query["proportion"]))),
            tags=query["name"].split(" * "),
        )
        for level in census["levels"]
        for query in level["queries"]
    ]
    _open(call, "us-persons-2020", models.ZcdpBudget(definition="zcdp", rho="2.56"))
    plan = models.Sequence(type_="sequence", parts=parts)
    body = models.RegisterRelease(name="2020 P.L. 94-171", plan=plan, delta="1e-10")
    release = call("releases.register_release", "us-persons-2020", body=body, idempotency_key="k")
    assert isinstance(release, models.ReleaseBody)
    assert len(release.plan.parts) == 65
    assert isinstance(release.plan.parts[7], models.DiscreteGaussian)
    assert release.cost.zcdp.rho_exact == "293764/114921"
    assert release.cost.approximate[0].epsilon == pytest.approx(17.14, abs=5e-3)
    assert release.cost.approximate[0].via is models.ApproximateFigureVia.ZCDP
    again = call("releases.register_release", "us-persons-2020", body=body, idempotency_key="k")
    assert again.to_dict() == release.to_dict()
    balance = call("balance_and_history.read_balance", "us-persons-2020", tag="hispanic")
    assert balance.releases == 1
    assert 0 < balance.spent.zcdp.rho < release.cost.zcdp.rho
    missing = call("registry.read_release_entry", "us-persons-2020", release.id)
    assert isinstance(missing, models.Problem)
    assert "data_curators" in missing.missing


def test_county_counts_from_accuracy_to_noise(call: Generated) -> None:
    models = call.models
    with (_DEMO / "us_county_population_2010.csv").open(encoding="utf-8") as file:
        counts = [int(county["population"]) for county in csv.DictReader(file)]
    mechanism = models.MarginTargetMechanism.DISCRETE_GAUSSIAN
    target = models.MarginTarget(mechanism=mechanism, moe=6, confidence="0.95", cells=2)
    calibrated = call("computations.calibrate_to_margin", body=target)
    assert calibrated.mechanism.sigma_squared == "11.081705253"
    account = _open(call, "counties-2010", models.ApproximateBudget("approximate", epsilon="4", delta="1e-10"))
    assert account.budget.epsilon == "4"
    body = models.RegisterAndDraw(name="county totals", mechanism=calibrated.mechanism, counts=counts)
    draw = call("noisy_counts.register_and_draw", "counties-2010", body=body, idempotency_key="county-totals-2010")
    assert len(draw.noisy) == 3142
    within = sum(
        abs(noisy - count) <= draw.margin_of_error.moe for noisy, count in zip(draw.noisy, counts, strict=True)
    )
    assert within > 2900  # of 3142; with 95 %, fewer have a probability of 1e-11
    assert call("noisy_counts.read_draw", "counties-2010", draw.draw).noisy == draw.noisy
    second = models.DrawMechanism(mechanism="/", counts=[0])
    refused = call("noisy_counts.draw_mechanism", "counties-2010", draw.release, body=second)
    assert isinstance(refused, models.Problem)
    assert (str(refused.type_), refused.draw) == ("/problems/already_drawn", draw.draw)
    twice = models.Repeat(type_="repeat", count=2, part=calibrated.mechanism)
    more = call("releases.register_release", "counties-2010", body=models.RegisterRelease(name="too much", plan=twice))
    assert isinstance(more, models.Problem)
    assert str(more.type_) == "/problems/budget_exceeded"
    assert more.requested > more.remaining
    assert more.noise_multiplier_that_fits == pytest.approx(1.385462)
    assert more.failures[0].cap == more.cap == "epsilon"


def test_other_problems_are_typed_too(call: Generated) -> None:
    models = call.models
    unknown = call("accounts.read_account", "nobody")
    assert (str(unknown.type_), unknown.status) == ("/problems/not_found", 404)
    wrong = _open(call, "nobody", models.ZcdpBudget(definition="zcdp", rho="-1"))
    assert [(fault.pointer, fault.detail) for fault in wrong.errors] == [("/budget/rho", "expected a number above 0")]
    call.client._client.headers["Authorization"] = "Bearer nothing"
    assert str(call("accounts.list_accounts").type_) == "/problems/unauthenticated"
