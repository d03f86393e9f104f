"""The bill of materials: every locked package with its version and its hashes."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import service

_ROOT = Path(__file__).resolve().parents[1]
_LOCKED = re.compile(r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-otel.lock"])
def test_the_bill_lists_what_the_lock_installs(lock: str, tmp_path: Path) -> None:
    made = tmp_path / "sbom.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--silent", "sbom", f"REQUIREMENTS={lock}", f"SBOM={made}"]
    subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, env=environment)
    bill, text = json.loads(made.read_text("utf-8")), (_ROOT / lock).read_text("utf-8")
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["version"] == service.__version__
    assert {(one["name"], one["version"]) for one in bill["components"]} == set(_LOCKED.findall(text))
    hashes = {
        digest["content"]
        for one in bill["components"]
        for reference in one["externalReferences"]
        for digest in reference["hashes"]
    }
    assert hashes == set(_HASH.findall(text))
