"""Tables of three libraries: their counts go out, noisy counts come in their place, all else stays."""

import logging
from collections.abc import Callable
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from privacy_budget_ledger import Account, Client, errors, frames, plans
from tests.client.conftest import answer_lost, faulty
from tests.processes import Served

_ROWS: dict[str, list[Any]] = {
    "state": ["01", "02", "01", "36"],
    "count": [987654321, 0, 45, 377],
    "share": [0.5, None, 0.25, 1.0],
}
_NOISE = plans.Geometric(epsilon="0.5")
_KINDS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "batch": pa.RecordBatch.from_pydict,
}


def _columns(frame: Any) -> dict[str, list[Any]]:
    if isinstance(frame, pd.DataFrame):
        return {name: [None if pd.isna(value) else value for value in frame[name]] for name in frame}
    return frame.to_dict(as_series=False) if isinstance(frame, pl.DataFrame) else frame.to_pydict()


@pytest.mark.parametrize("kind", _KINDS)
def test_noisy_counts_come_in_the_place_of_the_counts(kind: str, ledger: Client, account: Account) -> None:
    frame = _KINDS[kind](_ROWS)
    drawn = ledger.draw(account.name, frame, name="table", mechanism=plans.Geometric(epsilon="0.001"))
    assert type(drawn.frame) is type(frame)
    columns = _columns(drawn.frame)
    assert list(columns) == ["state", "noisy", "share"]
    assert (columns["state"], columns["share"]) == (_ROWS["state"], _ROWS["share"])
    assert all(type(noisy) is int for noisy in columns["noisy"])
    assert columns["noisy"] != _ROWS["count"]  # all four noises are 0 with a probability below 1e-13
    assert all(abs(noisy - count) < 100_000 for noisy, count in zip(columns["noisy"], _ROWS["count"], strict=True))
    assert _columns(frame) == _ROWS  # as it was
    stored = ledger.request("GET", f"/v1/accounts/{account.name}/draws/{drawn.draws[0]}")
    assert stored["noisy"] == columns["noisy"]
    assert (stored["release"], stored["head"]["seq"], drawn.replayed) == (drawn.release, drawn.head.seq, False)


def test_a_pandas_table_keeps_its_index_and_types(ledger: Client, account: Account) -> None:
    frame = pd.DataFrame({"n": pd.array([5, 7, 9], "Int64"), 3: pd.Categorical(["a", "b", "a"])}, index=[9, 2, 9])
    noisy = ledger.draw(account.name, frame, name="table", mechanism=_NOISE, count="n").frame
    assert list(noisy.index) == [9, 2, 9]
    assert list(noisy.columns) == ["noisy", 3]
    assert noisy.dtypes[3] == frame.dtypes[3]
    assert noisy.dtypes["noisy"] == "int64"


def test_only_the_counts_are_sent(served: Served, account: Account) -> None:
    client, connection = faulty(served, answer_lost)
    with client:
        client.draw(account.name, pl.DataFrame(_ROWS), name="table", mechanism=_NOISE)
    for request in connection.seen:
        sent = pa.ipc.open_stream(request.content).read_all()
        assert sent.to_pydict() == {"count": _ROWS["count"]}
    first, second = connection.seen
    assert first.content == second.content


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([1.0, 2.5], "count"),
        ([1, None], "count"),
        (["1", "2"], "count"),
        ([True, False], "count"),
        ([1, 2], "persons"),
    ],
)
def test_other_columns_are_refused_before_anything_is_sent(kind: str, values: list[Any], column: str) -> None:
    with Client("http://127.0.0.1:9", "key") as client, pytest.raises(errors.InvalidFrame) as caught:
        client.draw("town", _KINDS[kind]({column: values}), name="table", mechanism=_NOISE)
    assert str(caught.value).startswith(
        "expected a column 'count' of whole numbers" if column == "count" else "expected one column 'count', got 0"
    )


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("values", [[], [0.0, -0.0, 3.0], [float(2**53), -float(2**53)]])
def test_whole_floating_point_numbers_are_counts(kind: str, values: list[float]) -> None:
    """pandas makes them of integers where it joins tables."""
    column = pa.array(values, pa.float64())
    frame = _KINDS[kind]({"count": column if kind in ("arrow", "batch") else column.to_numpy()})
    assert frames.counts_of(frame, "count").to_pylist() == values
    assert frames.counts_of(frame, "count").type == pa.int64()


_TYPED = "expected a column 'count' of whole numbers within 2^62 of 0, none of them missing; got the type "


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"count": [1.0, None, 12345.5]}), "float64 (rows: 3, missing: 1, not whole: 1)"),
        (pl.DataFrame({"count": [1.0, None, float("nan")]}), "Float64 (rows: 3, missing: 1, not whole: 1)"),
        (pd.DataFrame({"count": pd.array([1, None], "Int64")}), "Int64 (rows: 2, missing: 1)"),
        (pd.DataFrame({"count": [1.0, float("inf")]}), "float64 (rows: 2, not whole: 1)"),
        (pd.DataFrame({"count": [1.0, 2.0**53 + 12346]}), "float64 (rows: 2, some are too large)"),
        (pa.table({"count": pa.array([2.0**24 + 2], pa.float32())}), "float (rows: 1, some are too large)"),
        (pd.DataFrame({"count": [True]}), "bool"),
        (pd.DataFrame({"count": ["a", 1]}), "object"),
    ],
)
def test_a_refusal_names_the_type_and_how_many_rows_are_wrong(frame: Any, message: str) -> None:
    with pytest.raises(errors.InvalidFrame) as caught:
        frames.counts_of(frame, "count")
    assert str(caught.value) == _TYPED + message
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ([1, 2], "expected a DataFrame of pandas or polars, or an Arrow table, got list"),
        (
            pl.LazyFrame({"count": [1]}),
            "pandas or polars, or an Arrow table, got LazyFrame: call its coll",
        ),
        (pl.DataFrame({"count": [1], "noisy": [1]}), "expected no column 'noisy'"),
        (pd.DataFrame([[1, 2]], columns=["count", "count"]), "expected one column 'count', got 2"),
        (pa.table({"count": pa.array([2**63 + 12345], pa.uint64())}), "expected a column 'count' of whole numbers"),
        (pd.DataFrame({"count": [1, "12345"]}), "expected a column 'count' of whole numbers"),
        (pd.DataFrame({"count": [2**70 + 12345]}), "expected a column 'count' of whole numbers"),
    ],
)
def test_a_table_that_cannot_be_drawn_is_refused_without_a_count_in_the_message(frame: Any, message: str) -> None:
    with pytest.raises(errors.InvalidFrame, match=message) as caught:
        frames.counts_of(frame, "count")
    assert "12345" not in str(caught.value)
    assert caught.value.__context__ is None


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(errors.InvalidFrame, match=r"install the package as './client\[arrow\]'"):
        frames.counts_of(pl.DataFrame(_ROWS), "count")


@pytest.mark.parametrize("stream", [b"", b"no stream", frames.stream_of(pa.array([1]))])
def test_an_answer_without_noisy_counts_is_unexpected(stream: bytes) -> None:
    with pytest.raises(errors.UnexpectedAnswer, match="a noisy count for each count"):
        frames.noisy_of(stream, 1)


def test_no_count_is_shown_or_logged(
    served: Served, account: Account, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    client, _ = faulty(served, answer_lost)
    with client:
        drawn = client.draw(account.name, pl.DataFrame(_ROWS), name="table", mechanism=_NOISE)
    noisy = str(drawn.frame["noisy"][0])
    shown = "".join([repr(drawn), repr(client), caplog.text, *capsys.readouterr()])
    assert caplog.text
    assert all(count not in shown for count in ("987654321", noisy))
    failing, _ = faulty(served, answer_lost, attempts=1)
    with failing, pytest.raises(errors.ConnectionFailed) as caught:
        failing.draw(account.name, pl.DataFrame(_ROWS), name="table", mechanism=_NOISE)
    assert caught.value.__context__ is caught.value.__cause__ is None  # an error of httpx refers to the counts
    assert not hasattr(caught.value, "request")
