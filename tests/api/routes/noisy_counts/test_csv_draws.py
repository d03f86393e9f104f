"""Draws over CSV by HTTP: the same draw, charge and replay as over Arrow and JSON, and the same permissions."""

import csv
import io
import json
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it publishes no types
import pytest

from service.api.publication.noisy_tables import PARQUET
from tests.api.calls import (
    Answer,
    Client,
    application,
    client_of,
    json_of,
    make_key,
    open_account,
    operators_key,
    pointers_of,
    problem_of,
    pure,
    release,
)
from tests.api.streams import MEDIA_TYPE, NEARLY_NONE, counts

_WIDE = {"definition": "pure", "epsilon": 10**6}
_TABLE = "county,sex,count\r\n001,female,12\r\n001,male,-3\r\n"
_SECRET = "918273645"


def _register(
    client: Client, table: str | bytes = _TABLE, key: str | None = None, mechanism: Any = NEARLY_NONE, **query: Any
) -> Answer:
    parameters = {"name": "d", "mechanism": json.dumps(mechanism)} | query
    headers = {"Content-Type": "text/csv"} | ({"Idempotency-Key": key} if key else {})
    return client.post("/v1/accounts/people/draws", content=table, params=parameters, headers=headers)


def _draw(client: Client, made: Any, table: str = _TABLE, **query: Any) -> Answer:
    path = f"/v1/accounts/people/releases/{made['id']}/draws"
    return client.post(path, content=table, params=query, headers={"Content-Type": "text/csv"})


def _rows(answer: Answer, status: int = 201) -> list[dict[str, str]]:
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


def _spent(client: Client) -> Any:
    return json_of(client.get("/v1/accounts/people/balance"))["releases"]


@pytest.mark.parametrize(
    "budget",
    [
        {"definition": "pure", "epsilon": "4"},
        {"definition": "zcdp", "rho": "2"},
        {"definition": "approximate", "epsilon": "4", "delta": "1e-6"},
    ],
    ids=lambda budget: budget["definition"],
)
def test_the_charge_is_told_with_the_draw_in_every_form(embedded: Client, budget: dict[str, str]) -> None:
    open_account(embedded, budget=budget)
    mechanism, query = pure("0.25"), {"with_charge": "true"}
    parameters = query | {"name": "d", "mechanism": json.dumps(mechanism)}
    stream = {"Content-Type": MEDIA_TYPE}
    path = "/v1/accounts/people/draws"
    answers = [
        _register(embedded, mechanism=mechanism, key="once", **query),
        _register(embedded, mechanism=mechanism, key="once", **query),
        embedded.post(path, json={"name": "d", "mechanism": mechanism, "counts": [1]}, params=query),
        embedded.post(path, content=counts([1]), params=parameters, headers=stream),
    ]
    (listed, *_) = json_of(embedded.get("/v1/accounts/people/releases", params=query))["items"]
    assert listed["charge"]["definition"] == budget["definition"]
    for answer in answers:
        assert answer.status_code == 201
        assert json.loads(answer.headers["X-Charge"]) == listed["charge"]
    assert answers[0].content == answers[1].content
    assert "X-Charge" not in _register(embedded, mechanism=mechanism).headers
    assert pointers_of(_draw(embedded, listed, mechanism="/", **query)) == ["/query/with_charge"]


def test_counts_come_back_noisy_beside_their_labels(client: Client) -> None:
    open_account(client, budget=_WIDE)
    answer = _register(client, tags=["county", "sex"])
    assert _rows(answer) == [
        {"county": "001", "sex": "female", "noisy": "12", "moe": "0", "confidence": "0.95"},
        {"county": "001", "sex": "male", "noisy": "-3", "moe": "0", "confidence": "0.95"},
    ]
    stored = json_of(client.get(f"/v1/accounts/people/draws/{answer.headers['X-Draw']}"))
    assert stored["noisy"] == [12, -3]
    made = json_of(client.get(f"/v1/accounts/people/releases/{answer.headers['X-Release']}"))
    assert (made["name"], made["tags"], made["state"]) == ("d", ["county", "sex"], "committed")
    head = json_of(client.get("/v1/accounts/people/head"))
    assert answer.headers["X-Ledger-Head"] == f"{head['seq']}:{head['hash']}"


def test_the_margin_is_that_of_the_accuracy_statement(client: Client) -> None:
    open_account(client)
    answer = _register(client, mechanism={"type": "discrete_gaussian", "sigma_squared": "9"})
    statement = json_of(client.get(f"/v1/accounts/people/releases/{answer.headers['X-Release']}/accuracy"))
    assert {row["moe"] for row in _rows(answer)} == {str(statement["mechanisms"][0]["moe"])}


def test_a_repeated_request_is_answered_alike_and_charged_once(client: Client) -> None:
    open_account(client, budget=_WIDE)
    first, again = (_register(client, key="k", mechanism=pure(1)) for _ in range(2))
    assert first.content == again.content
    assert again.headers["Idempotent-Replay"] == "true"
    assert _spent(client) == 1
    problem_of(_register(client, _TABLE + "002,male,1\r\n", "k", pure(1)), "idempotency_conflict")
    problem_of(_register(client, _TABLE.replace("12", "13"), "k", pure(1)), "idempotency_conflict")
    assert _spent(client) == 1


def test_a_mechanism_of_a_release_is_drawn_once_for_each_partition(client: Client) -> None:
    open_account(client, budget=_WIDE)
    made = release(client, {**NEARLY_NONE, "name": "m", "partitions": ["north", "south"]})
    assert [row["noisy"] for row in _rows(_draw(client, made, mechanism="m", partition="north"))] == ["12", "-3"]
    problem_of(_draw(client, made, mechanism="m", partition="north"), "already_drawn")
    assert pointers_of(_draw(client, made, mechanism="m", partition="east")) == ["/query/partition"]
    assert pointers_of(_draw(client, made, mechanism="m", repetition="1")) == ["/query/repetition"]
    assert pointers_of(_draw(client, made, mechanism="n")) == ["/query/mechanism"]


def test_counts_with_a_granularity(client: Client) -> None:
    open_account(client, budget=_WIDE)
    wide = {"type": "geometric", "scale": "1e-4", "granularity": "0.5"}
    rows = _rows(_register(client, "place,count\na,1.5\nb,-2\n", mechanism=wide))
    assert [row["noisy"] for row in rows] == ["1.5", "-2.0"]
    refused = _register(client, f"place,count\na,1\nb,{_SECRET}.3\n", mechanism=wide)
    assert pointers_of(refused) == ["/3/2"]
    assert _SECRET not in refused.text
    whole = _register(client, f"place,count\na,{_SECRET}.5\n")
    assert pointers_of(whole) == ["/2/2"]
    assert _SECRET not in whole.text
    assert _spent(client) == 1


@pytest.mark.parametrize(
    ("table", "pointer"),
    [("", "/1"), ("a,b\n1,2\n", "/1"), (f"place,count\na,{_SECRET}x\n", "/2/2"), (b"count\n\xff\n", "/2")],
)
def test_a_wrong_table_charges_nothing(client: Client, table: str | bytes, pointer: str) -> None:
    open_account(client, budget=_WIDE)
    answer = _register(client, table)
    assert pointers_of(answer) == [pointer]
    assert _SECRET not in answer.text
    assert _spent(client) == 0


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"mechanism": "x"}, "/query/mechanism"),
        ({"mechanism": {"type": "gaussian", "rho": 1}}, "/query/mechanism"),
        ({"mechanism": {"type": "geometric", "epsilon": "NaN"}}, "/query/mechanism/geometric/epsilon"),
        ({"name": ""}, "/query/name"),
        ({"delta": "2"}, "/query/delta"),
        ({"counts": "[1]"}, "/query/counts"),
        ({"granularity": "0"}, "/query/mechanism/granularity"),
    ],
)
def test_wrong_parameters(client: Client, query: dict[str, Any], pointer: str) -> None:
    open_account(client, budget=_WIDE)
    assert pointers_of(_register(client, **query))[0].startswith(pointer.rsplit("/geometric", 1)[0])
    assert _spent(client) == 0


def test_what_does_not_fit_is_not_drawn(client: Client) -> None:
    open_account(client, budget={"definition": "pure", "epsilon": "0.5"})
    problem_of(_register(client, mechanism=pure(1)), "budget_exceeded")
    assert _spent(client) == 0


def test_roles(client: Client) -> None:
    open_account(client, budget=_WIDE)
    for role in ("auditor", "approver"):
        key = operators_key(client, role, role)
        headers = {"Content-Type": "text/csv"} | key
        query = {"name": "d", "mechanism": json.dumps(NEARLY_NONE)}
        answer = client.post("/v1/accounts/people/draws", content=_TABLE, params=query, headers=headers)
        problem_of(answer, "forbidden")
    elsewhere = make_key(client, "pipeline", accounts=["elsewhere"])
    query = {"name": "d", "mechanism": json.dumps(NEARLY_NONE)}
    headers = {"Content-Type": "text/csv"} | elsewhere
    problem_of(client.post("/v1/accounts/people/draws", content=_TABLE, params=query, headers=headers), "forbidden")


@pytest.mark.parametrize("kind", ["text/csv; charset=latin-1", "text/csv; charset=utf-16", "text/csv;" + "x" * 400])
def test_other_encodings_are_refused(client: Client, kind: str) -> None:
    open_account(client, budget=_WIDE)
    query = {"name": "d", "mechanism": json.dumps(NEARLY_NONE)}
    headers = {"Content-Type": kind}
    answer = client.post("/v1/accounts/people/draws", content=_TABLE, params=query, headers=headers)
    problem_of(answer, "unsupported_media_type")
    headers = {"Content-Type": "text/csv; charset=UTF-8"}
    _rows(client.post("/v1/accounts/people/draws", content=_TABLE, params=query, headers=headers))


def test_what_no_table_answers(client: Client) -> None:
    open_account(client, budget=_WIDE)
    query = {"name": "d", "mechanism": json.dumps(NEARLY_NONE)}
    headers = {"Content-Type": "text/csv", "Accept": "image/png"}
    problem_of(
        client.post("/v1/accounts/people/draws", content=_TABLE, params=query, headers=headers), "not_acceptable"
    )
    assert _spent(client) == 0


def test_a_table_is_answered_with_json_where_that_is_preferred(client: Client) -> None:
    open_account(client, budget=_WIDE)
    query = {"name": "d", "mechanism": json.dumps(NEARLY_NONE)}
    headers = {"Content-Type": "text/csv", "Accept": "application/json", "Idempotency-Key": "k"}
    answer = client.post("/v1/accounts/people/draws", content=_TABLE, params=query, headers=headers)
    drawn = json_of(answer, 201)
    assert (drawn["noisy"], answer.headers["X-Draw"]) == ([12, -3], drawn["draw"])
    again = _register(client, key="k")  # the same request, whose answer has another form
    assert [row["noisy"] for row in _rows(again)] == ["12", "-3"]
    assert _spent(client) == 1


def test_large_tables_are_bounded(app: Any) -> None:
    limited = client_of(application(app.state.database, app.state.secret, max_json_bytes=4000, max_json_items=1000))
    open_account(limited, budget=_WIDE)
    problem_of(_register(limited, "place,count\n" + "a,1\n" * 600), "too_large")
    problem_of(_register(limited, "place,count\n" + "a,1\n" * 2000), "too_large")
    assert _spent(limited) == 0


class TestInHelpers:
    """A long table is read, drawn and answered by a helper process; the serving process writes."""

    @pytest.fixture
    def helper_processes(self) -> int:
        return 1

    def test_a_long_table(self, client: Client) -> None:
        open_account(client, budget=_WIDE)
        table = "place,count\n" + "".join(f"{number},{number}\n" for number in range(5000))
        first, again = (_register(client, table, "k") for _ in range(2))
        assert [row["noisy"] for row in _rows(first)] == [str(number) for number in range(5000)]
        assert first.content == again.content
        assert (again.headers["Idempotent-Replay"], _spent(client)) == ("true", 1)
        refused = _register(client, table + f"x,{_SECRET}x\n")
        assert pointers_of(refused) == ["/5002/2"]
        assert _SECRET not in refused.text


def _parquet(client: Client, **query: Any) -> Answer:
    parameters = {"name": "d", "mechanism": json.dumps(NEARLY_NONE)} | query
    headers = {"Content-Type": "text/csv", "Accept": PARQUET, "Idempotency-Key": "k"}
    return client.post("/v1/accounts/people/draws", content=_TABLE, params=parameters, headers=headers)


def test_a_table_is_answered_as_parquet_with_the_same_rows(client: Client) -> None:
    open_account(client, budget=_WIDE)
    answer = _parquet(client)
    assert (answer.status_code, answer.headers["Content-Type"]) == (201, PARQUET)
    table = pq.read_table(io.BytesIO(answer.content))
    assert [str(field.type) for field in table.schema] == ["string", "string", "int64", "int64", "double"]
    stated = [[*row.values()] for row in table.to_pylist()]
    assert (table.column_names, stated) == (
        ["county", "sex", "noisy", "moe", "confidence"],
        [["001", "female", 12, 0, 0.95], ["001", "male", -3, 0, 0.95]],
    )
    again = _register(client, key="k")  # the same request, whose answer has another form
    assert again.headers["Idempotent-Replay"] == "true"
    assert [row["noisy"] for row in _rows(again)] == ["12", "-3"]
    assert _spent(client) == 1


def test_counts_with_a_granularity_are_texts_in_parquet(client: Client) -> None:
    open_account(client, budget=_WIDE)
    made = release(client, {**NEARLY_NONE, "granularity": "0.5", "name": "m"})
    answer = client.post(
        f"/v1/accounts/people/releases/{made['id']}/draws",
        content="county,count\r\n001,1.5\r\n",
        params={"mechanism": "m"},
        headers={"Content-Type": "text/csv", "Accept": f"{PARQUET}, text/csv;q=0.5"},
    )
    (row,) = pq.read_table(io.BytesIO(answer.content)).to_pylist()
    assert row == {"county": "001", "noisy": "1.5", "moe": "0.0", "confidence": 0.95}


def test_a_long_table_is_one_parquet_file(client: Client) -> None:
    open_account(client, budget=_WIDE)
    table = "area,count\n" + "".join(f"{number},{number}\n" for number in range(20_000))
    query = {"name": "d", "mechanism": json.dumps(NEARLY_NONE)}
    headers = {"Content-Type": "text/csv", "Accept": PARQUET}
    answer = client.post("/v1/accounts/people/draws", content=table, params=query, headers=headers)
    read = pq.read_table(io.BytesIO(answer.content))
    assert read.column("noisy").to_pylist() == list(range(20_000))
    assert read.column("area").to_pylist() == [str(number) for number in range(20_000)]


def test_other_requests_are_not_answered_as_parquet(client: Client) -> None:
    open_account(client, budget=_WIDE)
    body = {"name": "d", "mechanism": NEARLY_NONE, "counts": [1]}
    answer = client.post("/v1/accounts/people/draws", json=body, headers={"Accept": "image/png"})
    problem_of(answer, "not_acceptable")
    headers = {"Content-Type": "text/csv", "Accept": "*/*"}
    query = {"name": "e", "mechanism": json.dumps(NEARLY_NONE)}
    assert _rows(client.post("/v1/accounts/people/draws", content=_TABLE, params=query, headers=headers))


@pytest.mark.parametrize(("granularity", "count", "kind"), [("1", 12, "int64"), ("0.5", "12.0", "string")])
def test_a_stored_draw_is_read_as_parquet(client: Client, granularity: str, count: object, kind: str) -> None:
    open_account(client, budget=_WIDE)
    made = release(client, {**NEARLY_NONE, "granularity": granularity, "name": "m"})
    body = {"mechanism": "m", "counts": [12]}
    drawn = json_of(client.post(f"/v1/accounts/people/releases/{made['id']}/draws", json=body), 201)
    answer = client.get(f"/v1/accounts/people/draws/{drawn['draw']}", headers={"Accept": PARQUET})
    assert (answer.headers["Content-Type"], answer.headers["X-Draw"]) == (PARQUET, drawn["draw"])
    table = pq.read_table(io.BytesIO(answer.content))
    assert str(table.schema.field("noisy").type) == kind
    (row,) = table.to_pylist()
    assert (row["draw"], row["mechanism"], row["place"], row["noisy"]) == (drawn["draw"], "m", 0, count)
