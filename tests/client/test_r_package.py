"""The R package: its own tests and its vignette on a running service, and what it shares with the Python package."""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import service
from privacy_budget_ledger import Client, Head, KeptHeads, budgets, plans
from service.api.http.problems import KINDS
from tests.api.calls import STEWARD
from tests.client.conftest import AT_ONCE, opened
from tests.documents import WEB, differs, examples_of, listings
from tests.processes import PATIENCE, ROOT, Served
from tests.r_sessions import PACKAGE, install

_TESTS = PACKAGE / "tests" / "testthat"
_VIGNETTE = PACKAGE / "vignettes" / "from-r.Rmd"
_REPOSITORIES = ("CRAN", "BioCsoft", "BioCann", "BioCexp")
_CHAPTER = WEB / "guide" / "r.md"
needs_r = pytest.mark.skipif(
    shutil.which("Rscript") is None, reason="Rscript is missing: install what .ci/run names, such as r-cran-httr2"
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library with the package."""
    directory = tmp_path_factory.mktemp("r_library")
    install(directory)
    return directory


def _run(
    command: Sequence[str], at: Path, served: Served | None = None, **names: str
) -> subprocess.CompletedProcess[str]:
    if served is not None:
        names |= {"SERVICE": served.address, "KEY": STEWARD}
    return subprocess.run(
        command, env=os.environ | names, cwd=at, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def _evaluated(code: str, library: Path, at: Path = ROOT, served: Served | None = None) -> str:
    done = _run(["Rscript", "--vanilla", "-e", code], at, served, R_LIBS=str(library))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_r
@pytest.mark.parametrize("path", sorted(_TESTS.glob("test-*.R")), ids=lambda path: path.stem)
def test_its_own_tests_pass_on_a_running_service(path: Path, served: Served, library: Path) -> None:
    name = f"^{re.escape(path.stem.removeprefix('test-'))}$"
    code = (
        f"testthat::test_dir({json.dumps(str(_TESTS))}, filter = {json.dumps(name)}, package = 'privacybudgetledger',"
        " load_package = 'installed', stop_on_failure = TRUE, stop_on_warning = TRUE, reporter = 'check')"
    )
    printed = _evaluated(code, library, served=served)
    assert "FAIL 0 | WARN 0 | SKIP 0 | PASS" in printed, printed


@needs_r
def test_its_vignette_runs_and_prints_what_the_guide_says(served: Served, library: Path, tmp_path: Path) -> None:
    _evaluated(f"knitr::knit({json.dumps(str(_VIGNETTE))}, quiet = TRUE)", library, tmp_path, served)
    printed: list[str] = []
    for words, text, _ in listings(tmp_path / "from-r.md"):
        if words == ["r"]:
            printed.append("")
        elif printed:
            printed[-1] += text
    for example, output in zip(examples_of(_CHAPTER), printed, strict=True):
        assert differs(example, output) is None, differs(example, output)


def test_the_vignette_has_the_examples_of_the_guide() -> None:
    shown = [text for words, text, _ in listings(_VIGNETTE) if words == ["{r}"]]
    assert shown == [example.code for example in examples_of(_CHAPTER)]


@needs_r
def test_r_cmd_check_finds_nothing(tmp_path: Path) -> None:
    """Without a service, tests that need one are skipped, and the vignette's listings do not run.

    An empty repository takes the place of those where R would look for other packages.
    """
    index = tmp_path / "empty" / "src" / "contrib" / "PACKAGES"
    index.parent.mkdir(parents=True)
    index.touch()
    repositories = ", ".join(f"{name} = 'file://{tmp_path}/empty'" for name in _REPOSITORIES)
    (tmp_path / "profile.R").write_text(f"options(repos = c({repositories}))", "utf-8")
    built = _run(["R", "CMD", "build", str(PACKAGE)], tmp_path)
    assert built.returncode == 0, built.stderr
    archive = f"privacybudgetledger_{service.__version__}.tar.gz"
    command = ["R", "CMD", "check", "--no-manual", archive]
    done = _run(command, tmp_path, R_PROFILE=str(tmp_path / "profile.R"))
    assert "unable to access" not in done.stdout
    assert "\nStatus: OK\n" in done.stdout, done.stdout


def test_its_version_and_licence_are_those_of_the_service() -> None:
    description = (PACKAGE / "DESCRIPTION").read_text("utf-8")
    assert f"\nVersion: {service.__version__}\n" in description
    assert "\nImports: curl (>= 5.0.0), httr2 (>= 0.2.2), jsonlite (>= 1.8.0),\n    openssl (>= 2.0.0)\n" in description
    assert (PACKAGE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_its_page_of_conditions_has_each_problem() -> None:
    page = (PACKAGE / "man" / "conditions.Rd").read_text("utf-8")
    problems = page.partition(r"\section{Problems of the service}")[2].partition(r"\section")[0]
    assert re.findall(r"\\item\{\\code\{pbl_(\w+)\}\}", problems) == sorted(KINDS)


@needs_r
def test_its_constructors_have_the_fields_of_the_python_package(library: Path) -> None:
    """Those have the fields of the contract (``test_plans``)."""
    kinds = [*plans.MECHANISMS, *plans.NODES]
    named: dict[str, Any] = {f"plan_{kind.TYPE}": kind for kind in kinds}
    named |= {f"budget_{kind.DEFINITION}": kind for kind in budgets.Budget.__subclasses__()}
    named |= {"declaration": plans.Declaration, "rdp_point": plans.RdpPoint, "moved_cells": plans.MovedCells}
    named["plan_threshold"] = plans.Threshold
    code = (
        "package <- asNamespace('privacybudgetledger');"
        " names <- grep('^(plan|budget)_|^declaration$|^rdp_point$|^moved_cells$',"
        " getNamespaceExports(package), value = TRUE);"
        " cat(jsonlite::toJSON(lapply(mget(names, package), function(one) names(formals(one)))))"
    )
    found = {name: set(arguments) - {"..."} for name, arguments in json.loads(_evaluated(code, library)).items()}
    assert found == {name: {field.name for field in fields(kind)} - {"parts"} for name, kind in named.items()}


@needs_r
def test_a_redirection_is_not_followed(library: Path) -> None:
    """The key is sent to no other address."""
    asked: list[tuple[str, str | None]] = []

    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Redirecting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code = (
            "library(privacybudgetledger); cat(tryCatch("
            f"account(connect_ledger('http://127.0.0.1:{server.server_port}', 'pbl_key'), 'town'),"
            " pbl_unexpected_answer = conditionMessage))"
        )
        assert "got status 302" in _evaluated(code, library)
        server.shutdown()
    assert asked == [("/v1/accounts/town", "Bearer pbl_key")]


@needs_r
def test_both_packages_read_the_heads_that_the_other_keeps(served: Served, library: Path, tmp_path: Path) -> None:
    names = ["town", "/".join(("..", "town")), "Zürich, 1 %"]
    written = f"c({', '.join(map(json.dumps, names))})"
    heads, head = json.dumps(str(tmp_path)), json.dumps(f"7:{'a' * 64}")
    code = f"for (name in {written}) privacybudgetledger:::keep_head({heads}, name, {head})"
    _evaluated(code, library)
    kept = KeptHeads(tmp_path)
    assert [kept.of(name) for name in names] == [Head(7, "a" * 64)] * 3
    with Client(served.address, STEWARD, retries=AT_ONCE, heads=tmp_path) as client:
        account = opened(client)
    code = f"cat(privacybudgetledger::kept_head({heads}, {json.dumps(account.name)}))"
    assert _evaluated(code, library) == str(account.head)
