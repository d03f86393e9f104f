"""The package by itself: what it needs, its version, and that it can be built and installed."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import privacy_budget_ledger
import service
from tests.processes import PATIENCE, ROOT

_PROJECT = ROOT / "client"


def test_its_version_is_that_of_the_service() -> None:
    assert _of(_PROJECT)["version"] == privacy_budget_ledger.__version__ == service.__version__


def test_it_needs_httpx_alone() -> None:
    assert [_named(one) for one in _of(_PROJECT)["dependencies"]] == ["httpx"]
    optional = ("dp_accounting", "numpy", "opendp", "pandas", "polars", "pyarrow", "pydantic", "pyspark", "service")
    code = "import sys, privacy_budget_ledger, privacy_budget_ledger.adapters; print(sorted({*sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(_PROJECT / "src")},
        cwd=_PROJECT,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "'httpx'" in done.stdout
    assert [name for name in optional if f"'{name}'" in done.stdout] == []


def test_the_libraries_that_it_can_use_are_extras_in_the_versions_of_the_tests() -> None:
    extras = _of(_PROJECT)["optional-dependencies"]
    asked = {_named(one): one for one in _of(ROOT)["dependencies"]}
    for extra in ("dev", "spark"):
        asked |= {_named(one): one for one in _of(ROOT)["optional-dependencies"][extra]}
    assert set(extras) == {"arrow", "dp-accounting", "opendp", "pandas", "polars", "spark"}
    for name, needed in extras.items():
        assert {"arrow": "pyarrow", "spark": "pyspark"}.get(name, name) in map(_named, needed)
        assert [asked[_named(one)] for one in needed] == needed


def _of(directory: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((directory / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def _named(requirement: str) -> str:
    return requirement.partition(">")[0]


def test_a_wheel_of_it_is_built_without_the_network_and_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uv", "build", "--wheel", "--offline", "--no-config", "--out-dir", str(tmp_path)]
    subprocess.run([*command, str(_PROJECT)], check=True, capture_output=True, timeout=PATIENCE)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"privacy_budget_ledger_client-{service.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (licence,) = (archive.read(name) for name in names if name.endswith("/LICENSE"))
    assert licence == (ROOT / "LICENSE").read_bytes()
    sources = {path.name for path in (_PROJECT / "src" / "privacy_budget_ledger").iterdir() if path.is_file()}
    assert {Path(name).name for name in names if name.startswith("privacy_budget_ledger/")} - {""} >= sources
    code = "import privacy_budget_ledger as package; print(package.__file__, package.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(wheel)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.split() == [f"{wheel}/privacy_budget_ledger/__init__.py", service.__version__]
