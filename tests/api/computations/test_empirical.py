"""Empirical privacy loss over HTTP: estimates, bounds, and experiments as jobs; for stewards only, without echoes."""

import time
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from sqlalchemy import text

from service.api.charts import pictures
from service.empirical.loss import SmoothingSetting, estimate_loss
from service.empirical.noise import two_sided_geometric
from service.empirical.residuals import residuals_of
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret
from tests.api.calls import Answer, Client, application, client_of, json_of, make_key, pointers_of, problem_of
from tests.processes import PATIENCE

_LOSS, _BOUND, _EXPERIMENTS = "/v1/empirical/loss", "/v1/empirical/lower-bound", "/v1/empirical/experiments"
_PICTURE = {"Accept": "image/svg+xml"}
_RESIDUALS: list[int] = two_sided_geometric(0.5, 2000, np.random.default_rng(1)).tolist()
_SMALL = {"algorithm": "gdpc", "epsilon": "0.5", "N": 100_000, "J": 2, "mu": 40, "bootstrap": 20, "seed": 1}
_CANARY = 8675309021


def _loss(client: Client, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return client.post(_LOSS, json={"residuals": _RESIDUALS} | fields, headers=headers)


def _bound(client: Client, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return client.post(_BOUND, json=fields or {"residuals": _RESIDUALS}, headers=headers)


# Estimates


def test_the_estimate_is_the_published_one_and_says_how_far_to_trust_it(shared_client: Client) -> None:
    answer = json_of(_loss(shared_client, bootstrap=50))
    found = estimate_loss(residuals_of(np.array(_RESIDUALS)), SmoothingSetting())
    assert (answer["epl"], answer["at"]) == (found.epl, found.at)
    assert [point["x"] for point in answer["curve"]] == found.x.tolist()
    assert max(abs(point["epl"]) for point in answer["curve"][:-1]) == answer["epl"]
    assert answer["curve"][-1]["epl"] is None
    assert answer["interval"][0] < answer["interval"][1]
    assert answer["bias"]["epsilon"] == pytest.approx(0.5, rel=0.1)
    assert answer["bias"]["bias"] == pytest.approx(answer["bias"]["mean"] - answer["bias"]["epsilon"])
    assert answer["protected"] is False


def test_settings_are_exact_numbers(shared_client: Client) -> None:
    answer = json_of(_loss(shared_client, bandwidth="3/20", percentile=99, multiplier="1.5", bootstrap=0))
    assert answer["epl"] == estimate_loss(residuals_of(np.array(_RESIDUALS)), SmoothingSetting(0.15, 99, 1.5)).epl
    assert (answer["interval"], answer["bias"]) == (None, None)


def test_residuals_need_not_be_whole(shared_client: Client) -> None:
    quarters = [value / 4 for value in _RESIDUALS]
    found = estimate_loss(residuals_of(np.array(quarters)), SmoothingSetting(multiplier=2))
    assert json_of(_loss(shared_client, residuals=quarters, bootstrap=0, multiplier=2))["epl"] == found.epl


@pytest.mark.parametrize("ask", [_loss, _bound])
@pytest.mark.parametrize(
    ("residuals", "pointer"),
    [
        (7, "/residuals"),
        ("text", "/residuals"),
        ({"0": 1}, "/residuals"),
        ([1, "2"], "/residuals/1"),
        ([1, None], "/residuals/1"),
        ([[1]], "/residuals/0"),
        ([True], "/residuals/0"),
        ([1, 2, 2**53 + 2], "/residuals/2"),
        ([0, -(10**400)], "/residuals/1"),
        ([0, 1e17], "/residuals/1"),
    ],
)
def test_residuals_are_numbers(shared_client: Client, ask: Any, residuals: Any, pointer: str) -> None:
    assert pointers_of(ask(shared_client, residuals=residuals)) == [pointer]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "1e999999999"])
def test_residuals_are_finite(shared_client: Client, number: str) -> None:
    for path in (_LOSS, _BOUND):
        answer = shared_client.post(
            path, content=f'{{"residuals": [1, {number}]}}', headers={"Content-Type": "application/json"}
        )
        assert pointers_of(answer) in ([""], ["/residuals/1"])


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"bandwidth": 0}, "/bandwidth"),
        ({"bandwidth": -1}, "/bandwidth"),
        ({"bandwidth": 101}, "/bandwidth"),
        ({"bandwidth": "x"}, "/bandwidth"),
        ({"percentile": 50}, "/percentile"),
        ({"percentile": "100.1"}, "/percentile"),
        ({"multiplier": 0}, "/multiplier"),
        ({"multiplier": 1001}, "/multiplier"),
        ({"bootstrap": -1}, "/bootstrap"),
        ({"bootstrap": 1001}, "/bootstrap"),
        ({"bootstrap": 1.0}, "/bootstrap"),
        ({"bootstrap": None}, "/bootstrap"),
        ({"seed": 1}, "/seed"),
        ({"counts": [1]}, "/counts"),
        ({"counts": ["1"]}, "/counts/0"),
        ({"residuals": []}, "/residuals"),
        ({"residuals": [5, 5, 5]}, "/residuals"),
        ({"residuals": [0, 0, 1]}, "/residuals"),
        ({"residuals": [-(10**9), 10**9]}, "/residuals"),
    ],
)
def test_what_has_no_estimate(shared_client: Client, fields: Any, pointer: str) -> None:
    assert pointers_of(_loss(shared_client, **fields)) == [pointer]


# Lower bounds


def test_a_bound_on_epsilon_of_residuals(shared_client: Client) -> None:
    answer = json_of(_bound(shared_client, residuals=_RESIDUALS * 5, confidence="0.999999"))
    assert 0.3 < answer["epsilon_lower_bound"] < 0.5
    assert (answer["delta_lower_bound"], answer["delta"], answer["epsilon"]) == (None, 0, None)
    assert answer["confidence"] == 0.999999
    assert answer["event"]["compared_with"] == answer["event"]["start"] + (
        -1 if answer["event"]["kind"] == "at_most" else 1
    )
    assert answer["holds_for"].startswith("independent, identically distributed noise")
    assert answer["protected"] is False


def test_a_larger_shift_shows_a_larger_loss(shared_client: Client) -> None:
    answer = json_of(_bound(shared_client, residuals=_RESIDUALS * 5, shift=3, confidence="0.999999"))
    assert 1.0 < answer["epsilon_lower_bound"] < 1.5


def test_bounds_with_a_delta(shared_client: Client) -> None:
    sure = "0.999999"
    at_delta = json_of(_bound(shared_client, residuals=_RESIDUALS * 5, delta="0.05", confidence=sure))
    assert 0.1 < at_delta["epsilon_lower_bound"] < 0.4
    assert at_delta["delta"] == 0.05
    at_epsilon = json_of(_bound(shared_client, residuals=_RESIDUALS * 5, epsilon="0.2", confidence=sure))
    assert 0.05 < at_epsilon["delta_lower_bound"] < 0.16
    assert (at_epsilon["epsilon_lower_bound"], at_epsilon["delta"], at_epsilon["epsilon"]) == (None, None, 0.2)


def test_a_bound_from_runs_on_neighbouring_inputs(shared_client: Client) -> None:
    moved = [value + 1 for value in reversed(_RESIDUALS)]
    answer = json_of(_bound(shared_client, outputs=_RESIDUALS, neighbouring_outputs=moved, confidence="0.99"))
    assert 0.2 < answer["epsilon_lower_bound"] < 0.6
    assert answer["event"]["compared_with"] == answer["event"]["start"]
    assert answer["holds_for"].startswith("independent runs")


def test_nothing_to_go_on_bounds_nothing(shared_client: Client) -> None:
    answer = json_of(_bound(shared_client, residuals=[]))
    assert (answer["epsilon_lower_bound"], answer["event"]) == (0, None)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"confidence": 0.9}, "/residuals"),
        ({"outputs": [1]}, "/neighbouring_outputs"),
        ({"neighbouring_outputs": [1]}, "/outputs"),
        ({"residuals": [1], "outputs": [1]}, "/outputs"),
        ({"residuals": [1], "neighbouring_outputs": [1]}, "/neighbouring_outputs"),
        ({"outputs": [1], "neighbouring_outputs": [1], "shift": 1}, "/shift"),
        ({"residuals": [1], "shift": 0}, "/shift"),
        ({"residuals": [1], "shift": 0.5}, "/shift"),
        ({"residuals": [1], "confidence": 0}, "/confidence"),
        ({"residuals": [1], "confidence": 1}, "/confidence"),
        ({"residuals": [1], "confidence": "0.9999999999999999"}, "/confidence"),
        ({"residuals": [1], "delta": 1}, "/delta"),
        ({"residuals": [1], "delta": -1}, "/delta"),
        ({"residuals": [1], "epsilon": -1}, "/epsilon"),
        ({"residuals": [1], "epsilon": 701}, "/epsilon"),
        ({"residuals": [1], "epsilon": 1, "delta": 0}, "/delta"),
        ({"residuals": [1], "seed": 1}, "/seed"),
    ],
)
def test_what_has_no_bound(shared_client: Client, fields: Any, pointer: str) -> None:
    assert pointers_of(_bound(shared_client, **fields)) == [pointer]


# Confidentiality


@pytest.mark.parametrize("role", ["auditor", "pipeline"])
def test_only_stewards_may(client: Client, role: str) -> None:
    headers = make_key(client, role)
    for path, body in ((_LOSS, {"residuals": []}), (_BOUND, {"residuals": []}), (_EXPERIMENTS, _SMALL)):
        problem_of(client.post(path, json=body, headers=headers), "forbidden")
    problem_of(client.get("/v1/jobs/x", headers=headers), "forbidden")
    problem_of(client.delete("/v1/jobs/x", headers=headers), "forbidden")


def test_no_refusal_repeats_a_residual(shared_client: Client) -> None:
    lists: list[Any] = [
        [_CANARY, "x"],
        [_CANARY] * 3,
        [_CANARY, -_CANARY],
        [_CANARY * 10**9],
        [str(_CANARY)],
        [{"a": _CANARY}],
        _CANARY,
    ]
    for values in lists:
        for answer in (
            _loss(shared_client, residuals=values),
            _bound(shared_client, outputs=values, neighbouring_outputs=values),
        ):
            assert answer.status_code == 422 or answer.json().get("event") is None
            assert answer.status_code != 422 or str(_CANARY) not in answer.text
    for answer in (
        _loss(shared_client, counts=[_CANARY]),
        _loss(shared_client, counts=[_CANARY, "x"], residuals=[1, 2]),
    ):
        assert str(_CANARY) not in answer.text


def test_nothing_is_stored(client: Client, database: Database) -> None:
    json_of(_loss(client))
    json_of(_bound(client))
    with database.read() as connection:
        for table in ("jobs", "journal", "stored_answers"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0


# Pictures


def _parsed(answer: Answer) -> str:
    assert answer.status_code == 200
    assert answer.headers["content-type"] == pictures.SVG
    root = ElementTree.fromstring(answer.content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return " ".join(root.itertext())


def test_every_answer_has_its_picture(shared_client: Client) -> None:
    assert "EPL(x)" in _parsed(_loss(shared_client, _PICTURE))
    with_counts = _parsed(_loss(shared_client, _PICTURE, counts=list(range(2000))))
    assert "true count" in with_counts
    assert "noisy count" in with_counts
    assert "epsilon at least 0." in _parsed(_bound(shared_client, _PICTURE))
    pair = {"outputs": _RESIDUALS, "neighbouring_outputs": [value + 1 for value in _RESIDUALS], "epsilon": "0.1"}
    assert "delta at least 0." in _parsed(_bound(shared_client, _PICTURE, **pair))
    for nothing in ([], [2**53], [-(2**53), 2**53], [0.25]):
        assert "epsilon at least 0.000000" in _parsed(_bound(shared_client, _PICTURE, residuals=nothing))


def test_a_picture_is_its_content(shared_client: Client) -> None:
    first, second = (_loss(shared_client, _PICTURE, bootstrap=0).content for _ in range(2))
    assert first == second
    assert b"http" not in first.replace(b"http://www.w3.org/", b"").replace(b"http://purl.org/dc/", b"").replace(
        b"http://creativecommons.org/ns", b""
    )


@pytest.mark.parametrize(
    ("accept", "picture"),
    [
        ("image/svg+xml", True),
        ("text/html, image/svg+xml;q=0.5, */*;q=0.1", True),
        ("application/json, IMAGE/SVG+XML", True),
        ("application/json, image/svg+xml;q=0.9", False),
        ("image/svg+xml;q=0, */*", False),
        ("image/svg+xml;q=high, application/*", False),
        ("image/png;q=0.3, image/svg+xml;q=0.4", True),
        ("image/png, image/svg+xml", True),
        ("*/*", False),
        ("image/*", True),
        ("", False),
    ],
)
def test_who_names_svg_gets_it(shared_client: Client, accept: str, picture: bool) -> None:
    answer = _loss(shared_client, {"Accept": accept}, bootstrap=0)
    assert answer.headers["content-type"] == (pictures.SVG if picture else "application/json")


# Experiments


def _ended(client: Client, location: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while (job := json_of(client.get(location)))["state"] in ("queued", "running"):
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    return job


def test_an_experiment_is_a_job(client: Client) -> None:
    answer = client.post(_EXPERIMENTS, json=_SMALL)
    job = json_of(answer, 202)
    location = answer.headers["Location"]
    assert location == f"/v1/jobs/{job['id']}"
    assert (job["state"], job["progress"], job["result"], job["problem"]) == ("queued", 0, None, None)
    assert job["parameters"] | _SMALL == job["parameters"]
    done = _ended(client, location)
    assert (done["state"], done["progress"], done["protected"]) == ("succeeded", 1, False)
    assert done["result"]["areas"] == 50**2
    assert done["result"]["epl"] == pytest.approx(0.5, rel=0.5)
    assert done["result"]["lower_bound"]["certified"] is True
    assert "EPL(x)" in _parsed(client.get(location, headers=_PICTURE))
    again = json_of(client.post(_EXPERIMENTS, json=_SMALL), 202)
    assert again["id"] != job["id"]
    assert _ended(client, f"/v1/jobs/{again['id']}")["result"] == done["result"]


def test_results_survive_a_restart(database: Database, secret: Secret) -> None:
    with client_of(application(database, secret)) as first:
        location = first.post(_EXPERIMENTS, json=_SMALL).headers["Location"]
        done = _ended(first, location)
    with client_of(application(database, secret)) as second:
        assert json_of(second.get(location)) == done


def test_every_algorithm_runs(embedded: Client) -> None:
    sizes = {"epsilon": 1, "N": 50_000, "J": 2, "mu": 40, "bootstrap": 0}
    given: dict[str, dict[str, Any]] = {
        "gdpc": {"direct_runs": 10},
        "rdpc": {"direct_runs": 10, "confidence": "0.9"},
        "adpc": {"P": 2, "direct_runs": 10},
        "consistent": {"strata": 3, "total_share": "1/3", "direct_runs": 10, "noise": "as_printed"},
        "invariant": {"strata": 3, "direct_runs": 10},
    }
    for algorithm, fields in given.items():
        answer = embedded.post(_EXPERIMENTS, json=sizes | fields | {"algorithm": algorithm})
        assert json_of(answer, 202)["parameters"]["seed"] >= 0
        done = _ended(embedded, answer.headers["Location"])
        assert done["state"] == "succeeded", done
        assert done["result"]["residuals"] == 35**2 * fields.get("strata", 1)
        assert done["parameters"]["noise"] == fields.get("noise", "geometric")
        assert done["result"]["direct"]["runs"] == 10


def test_an_experiment_that_shows_nothing_says_why(embedded: Client) -> None:
    answer = embedded.post(_EXPERIMENTS, json=_SMALL | {"epsilon": 50})
    done = _ended(embedded, answer.headers["Location"])
    assert (done["state"], done["result"]) == ("failed", None)
    assert done["problem"]["type"] == "/problems/validation"
    assert done["problem"]["detail"] == "expected at least two residuals that are not all alike"
    assert embedded.get(answer.headers["Location"], headers=_PICTURE).headers["content-type"] == "application/json"


def test_a_job_is_cancelled(client: Client) -> None:
    long = _SMALL | {"algorithm": "adpc", "P": 40, "N": 10**12, "mu": 10**6}  # 4 * 10^7 values of noise
    answer = client.post(_EXPERIMENTS, json=long)
    location = answer.headers["Location"]
    json_of(answer, 202)
    cancelled = json_of(client.delete(location))
    assert (cancelled["state"], cancelled["result"]) == ("cancelled", None)
    after = client.post(_EXPERIMENTS, json=_SMALL)
    assert _ended(client, after.headers["Location"])["state"] == "succeeded"
    assert json_of(client.get(location))["state"] == "cancelled"


def test_jobs_are_listed_without_results_and_deleted(client: Client) -> None:
    locations = [client.post(_EXPERIMENTS, json=_SMALL | {"seed": seed}).headers["Location"] for seed in (1, 2, 3)]
    for location in locations:
        _ended(client, location)
    first = json_of(client.get("/v1/jobs?limit=2"))
    second = json_of(client.get(f"/v1/jobs?limit=2&cursor={first['next_cursor']}"))
    listed = first["items"] + second["items"]
    assert [f"/v1/jobs/{job['id']}" for job in listed] == locations
    assert second["next_cursor"] is None
    whole = json_of(client.get(locations[0]))
    assert listed[0] == {name: whole[name] for name in listed[0]}
    assert "result" not in listed[0]
    assert len(json_of(client.get("/v1/jobs?state=succeeded"))["items"]) == 3
    assert json_of(client.get("/v1/jobs?state=queued"))["items"] == []
    other = make_key(client, "steward", "another")
    assert json_of(client.get("/v1/jobs", headers=other)) == {"items": [], "next_cursor": None}
    problem_of(client.get("/v1/jobs", headers=make_key(client, "pipeline", "robot")), "forbidden")
    assert json_of(client.delete(locations[0])) == whole
    problem_of(client.get(locations[0]), "not_found")
    problem_of(client.delete(locations[0]), "not_found")
    assert len(json_of(client.get("/v1/jobs"))["items"]) == 2
    for wrong in ("state=lost", "limit=0", "cursor=*"):
        assert pointers_of(client.get(f"/v1/jobs?{wrong}")) == [f"/query/{wrong.partition('=')[0]}"]


def test_a_repeated_request_is_one_job(client: Client) -> None:
    first, second = (client.post(_EXPERIMENTS, json=_SMALL, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert json_of(first, 202) == json_of(second, 202)
    assert second.headers["Idempotent-Replay"] == "true"
    assert first.headers["Location"] == second.headers["Location"]
    other = client.post(_EXPERIMENTS, json=_SMALL | {"seed": 2}, headers={"Idempotency-Key": "k"})
    problem_of(other, "idempotency_conflict")


def test_a_job_that_is_not_there(shared_client: Client) -> None:
    for path in ("/v1/jobs/nothing", "/v1/jobs/%00"):
        problem_of(shared_client.get(path), "not_found")
        problem_of(shared_client.delete(path), "not_found")


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"algorithm": "topdown"}, "/algorithm"),
        ({"epsilon": 0}, "/epsilon"),
        ({"epsilon": -1}, "/epsilon"),
        ({"epsilon": 101}, "/epsilon"),
        ({"epsilon": None}, "/epsilon"),
        ({"N": 0}, "/N"),
        ({"N": -5}, "/N"),
        ({"N": 10**12 + 1}, "/N"),
        ({"N": 1e6}, "/N"),
        ({"N": 10**12, "mu": 1}, "/N"),
        ({"J": 0}, "/J"),
        ({"J": 13}, "/J"),
        ({"mu": 0}, "/mu"),
        ({"mu": "40"}, "/mu"),
        ({"P": 0}, "/P"),
        ({"algorithm": "adpc", "P": 0}, "/P"),
        ({"algorithm": "adpc", "P": 1000, "N": 10**8, "mu": 100}, "/P"),
        ({"strata": 2}, "/strata"),
        ({"algorithm": "invariant", "strata": 0}, "/strata"),
        ({"algorithm": "invariant", "strata": 1000, "N": 10**9}, "/N"),
        ({"total_share": "0.5"}, "/total_share"),
        ({"algorithm": "consistent", "total_share": 0}, "/total_share"),
        ({"algorithm": "consistent", "total_share": 1}, "/total_share"),
        ({"algorithm": "invariant", "strata": 1, "J": 1, "direct_runs": 5}, "/direct_runs"),
        ({"algorithm": "consistent", "direct_runs": 10**6, "strata": 200}, "/direct_runs"),
        ({"algorithm": "invariant", "direct_runs": 10**5}, "/direct_runs"),
        ({"noise": "geometric"}, "/noise"),
        ({"algorithm": "consistent", "noise": "laplace"}, "/noise"),
        ({"algorithm": "invariant", "noise": "as_printed", "epsilon": 2}, "/epsilon"),
        ({"algorithm": "consistent", "noise": "as_printed", "epsilon": "2.7"}, "/epsilon"),
        ({"algorithm": "consistent", "noise": "as_printed", "epsilon": "2.1", "total_share": "0.97"}, "/epsilon"),
        ({"direct_runs": -1}, "/direct_runs"),
        ({"direct_runs": 10**6 + 1}, "/direct_runs"),
        ({"algorithm": "rdpc", "direct_runs": 10**6}, "/direct_runs"),
        ({"confidence": 1}, "/confidence"),
        ({"seed": -1}, "/seed"),
        ({"seed": 2**53 + 1}, "/seed"),
        ({"seed": "1"}, "/seed"),
        ({"bandwidth": 0}, "/bandwidth"),
        ({"residuals": [1]}, "/residuals"),
    ],
)
def test_what_is_no_experiment(shared_client: Client, fields: Any, pointer: str) -> None:
    assert pointers_of(shared_client.post(_EXPERIMENTS, json=_SMALL | fields)) == [pointer]


def test_a_limited_steward_reaches_only_jobs_of_their_own(client: Client) -> None:
    limited = make_key(client, "steward", "ann", accounts=["people"])
    unlimited = make_key(client, "steward", "bob")
    theirs = json_of(client.post(_EXPERIMENTS, json=_SMALL), 202)["id"]
    own = json_of(client.post(_EXPERIMENTS, json=_SMALL, headers=limited), 202)["id"]
    for method in ("GET", "DELETE"):
        problem_of(client.request(method, f"/v1/jobs/{theirs}", headers=limited), "forbidden")
    json_of(client.get(f"/v1/jobs/{theirs}"))
    for job in (theirs, own):
        json_of(client.get(f"/v1/jobs/{job}", headers=unlimited))
    json_of(client.get(f"/v1/jobs/{own}", headers=limited))
    json_of(client.delete(f"/v1/jobs/{own}", headers=limited))
    json_of(client.delete(f"/v1/jobs/{theirs}", headers=unlimited))
