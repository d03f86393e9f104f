"""The worked example on Spark, where Spark is."""

import csv
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.demo.local import local_service

_ROOT = Path(__file__).resolve().parents[1]
_COUNTIES = _ROOT / "service" / "demo" / "us_county_population_2010.csv"


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, str]]:
    """The address of a service and its steward's key."""
    with local_service() as (url, key, _):
        yield url, key


@pytest.mark.skipif(
    shutil.which("java") is None or not all(map(importlib.util.find_spec, ("pyspark", "pandas"))),
    reason="Spark is not here: `make test-spark` installs it (450 MB) and needs Java",
)
def test_the_spark_job_draws_each_partition_once(running: tuple[str, str]) -> None:
    address, key = running
    own = {"SERVICE": address, "KEY": key, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    paths = [str(_ROOT / "client" / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    own["PYTHONPATH"] = os.pathsep.join(paths)
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
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        path = "/v1/accounts/counties-spark/releases"
        (release,) = client.get(path).raise_for_status().json()["items"]
        draws = client.get(f"{path}/{release['id']}/draws").raise_for_status().json()["items"]
    assert len({draw["partition"] for draw in draws}) == len(draws) > 1
    assert sum(len(draw["noisy"]) for draw in draws) == len(true)
