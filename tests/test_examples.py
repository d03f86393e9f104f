"""The worked examples with Arrow, run as they are printed; that on Spark where Spark is."""

import contextlib
import csv
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.demo.local import local_service

_ROOT = Path(__file__).resolve().parents[1]
_COUNTIES = _ROOT / "service" / "demo" / "us_county_population_2010.csv"


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, str]]:
    """The address of a service and its steward's key."""
    with local_service() as (url, key):
        yield url, key


def _printed_in_the_readme(heading: str) -> tuple[str, str]:
    """The program and the output of a section."""
    text = (_ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {heading}$.*?```python\n(.*?)```\n\n```text\n(.*?)```", text, flags=re.S | re.M)
    assert found is not None
    return found[1], found[2]


def test_the_readmes_county_counts_through_arrow(running: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, printed = _printed_in_the_readme("County counts through Arrow")
    address, key = running
    monkeypatch.setenv("KEY", key)
    monkeypatch.chdir(_ROOT)
    output = io.StringIO()
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(output):
        exec(compile(program.replace("http://127.0.0.1:8000", address), "README.md", "exec"), names)
    names["service"].close()
    changing = re.compile(r"draw \S+|'noisy': -?\d+")
    assert changing.sub("", output.getvalue()) == changing.sub("", printed)
    noisy = [int(number) for number in re.findall(r"'noisy': (-?\d+)", output.getvalue() + printed)]
    with _COUNTIES.open(encoding="utf-8") as file:
        true = [int(row["population"]) for row in csv.DictReader(file)][:3]
    assert all(abs(one - other) < 50 for one, other in zip(noisy, true * 2, strict=True))  # beyond it: below e^-25


@pytest.mark.skipif(
    shutil.which("java") is None or not all(map(importlib.util.find_spec, ("pyspark", "pandas"))),
    reason="Spark is not here: `make test-spark` installs it (450 MB) and needs Java",
)
def test_the_spark_job_draws_each_partition_once(running: tuple[str, str]) -> None:
    address, key = running
    own = {"SERVICE": address, "KEY": key, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "examples/spark_county_counts.py"],
        cwd=_ROOT,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "3142 counties" in done.stdout
    with _COUNTIES.open(encoding="utf-8") as file:
        true = [(row["fips"], int(row["population"])) for row in csv.DictReader(file)]
    shown = re.findall(r"^\|(\d{5})\|[^|]*\| *(-?\d+)\|$", done.stdout, flags=re.M)
    assert [fips for fips, _ in shown] == [fips for fips, _ in true[:5]]
    assert all(abs(int(noisy) - count) < 50 for (_, noisy), (_, count) in zip(shown, true, strict=False))
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as client:
        path = "/v1/accounts/counties-spark/releases"
        (release,) = client.get(path).raise_for_status().json()["items"]
        draws = client.get(f"{path}/{release['id']}/draws").raise_for_status().json()["items"]
    assert len({draw["partition"] for draw in draws}) == len(draws) > 1
    assert sum(len(draw["noisy"]) for draw in draws) == len(true)
