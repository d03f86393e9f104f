"""The demo, run as a newcomer runs it; its figures against published ones and against sums written out here."""

import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import httpx
import numpy as np
import pytest

from service import demo
from service.demo import safetab
from service.demo.client import DemoStopped
from service.demo.local import local_service
from tests.forks import Fork
from tests.oracles import files
from tests.processes import PATIENCE, run

_ROOT = Path(__file__).resolve().parents[1]
_COMMAND = [sys.executable, "-m", "service", "demo"]
_RHO = Fraction(293764, 114921)


@pytest.fixture(scope="module")
def allocation() -> dict[str, Any]:
    return files.allocation()


@pytest.fixture(scope="module")
def printed() -> str:
    """Return what ``python -m service demo`` prints."""
    done = subprocess.run(_COMMAND, cwd=_ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _fork(command: Sequence[str], *, env: Mapping[str, str], stdout: BinaryIO, stderr: BinaryIO, **_: Any) -> Fork:
    return Fork(command[1:], env, stdout.fileno(), stderr.fileno())


@pytest.fixture(scope="module")
def forked() -> Iterator[None]:
    """Have demos in this process start their own service as a fork: `printed` starts it as a newcomer's does."""
    forking = SimpleNamespace(Popen=_fork, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.demo.local.subprocess", forking)
        yield


@pytest.fixture(scope="module")
def running(forked: None) -> Iterator[tuple[str, str]]:
    """The address of a service and its steward's key."""
    with local_service() as (url, key, _):
        yield url, key


def _loss(allocation: dict[str, Any], level: str | None = None, attribute: str | None = None) -> Fraction:
    """The sum of g*q/global_scale² over the queries of a level, or over those that reveal an attribute."""
    shares = [
        Fraction(at["proportion"]) * Fraction(query["proportion"])
        for at in allocation["levels"]
        if level in (None, at["geolevel"])
        for query in at["queries"]
        if attribute is None or attribute in query["name"].split(" * ") or query["name"] == "detailed"
    ]
    return sum(shares, Fraction(0)) / Fraction(allocation["global_scale"]) ** 2


def _figure(pattern: str, text: str) -> Fraction:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern} is not in the output"
    return Fraction(found[1].replace(",", ""))


def test_it_prints_plain_text_of_80_columns(printed: str) -> None:
    assert printed.isascii()
    assert "\x1b" not in printed
    assert [line for line in printed.splitlines() if len(line) > 80] == []


def test_the_release_costs_what_the_census_bureau_published(printed: str) -> None:
    assert "rho        293764/114921 = 2.556225581051331\n" in printed
    epsilon = _figure(r"epsilon    (\S+) at delta = 1e-10\n", printed)
    assert Fraction("17.14355074359") < epsilon < Fraction("17.14355074360")  # tests/oracles/values.json
    assert "(published by the Census Bureau for persons: 17.14)\n" in printed


def test_what_remains_is_the_budget_less_the_release_rounded_down(printed: str) -> None:
    left = Fraction("2.56") - _RHO
    shown = _figure(r"remaining  rho = (\S+)\n", printed)
    assert left * (1 - Fraction(1, 10**12)) < shown <= left


def test_every_level_is_listed_with_its_queries_and_its_part_of_the_loss(
    printed: str, allocation: dict[str, Any]
) -> None:
    rows = dict(re.findall(r"^  (\w+) +(\d+ +\S+ +\S+) %$", printed, flags=re.M))
    assert list(rows) == [level["geolevel"] for level in allocation["levels"]] + ["all"]
    for level in allocation["levels"]:
        queries, rho, share = rows[level["geolevel"]].split()
        loss = _loss(allocation, level=level["geolevel"])
        assert int(queries) == len(level["queries"])
        assert loss <= Fraction(rho) < loss + Fraction(1, 10**6)
        assert abs(Fraction(share) / 100 - Fraction(level["proportion"])) <= Fraction(1, 2000)
    queries, rho, share = rows["all"].split()
    assert (queries, share) == ("65", "100.0")
    assert _loss(allocation) == _RHO <= Fraction(rho) < _RHO + Fraction(1, 10**6)


def test_the_loss_about_one_attribute_is_that_of_the_queries_that_reveal_it(
    printed: str, allocation: dict[str, Any]
) -> None:
    loss = _loss(allocation, attribute="hispanic")
    assert loss <= _figure(r"\?tag=hispanic\):\n +rho = (\d\.\d+),", printed) < loss + Fraction(1, 10**6)


def test_the_calibrated_noise_meets_its_margin_and_barely(printed: str) -> None:
    variance = _figure(r"discrete Gaussian, sigma\^2 = (\S+):", printed)
    assert _tail(variance, 6) <= 0.05 < _tail(variance * (1 + Fraction(1, 10**9)), 6)
    assert (
        1 / (2 * variance) <= _figure(r"rho = (\S+) for each cell", printed) < 1 / (2 * variance) + Fraction(1, 10**6)
    )


def test_the_counties_are_the_published_ones_with_noise_of_the_releases_own(
    printed: str, allocation: dict[str, Any]
) -> None:
    counties = files.counties()
    (county,) = (level for level in allocation["levels"] if level["geolevel"] == "County")
    (total,) = (query for query in county["queries"] if query["name"] == "total")
    scale = Fraction(allocation["global_scale"])
    variance = scale**2 / (Fraction(county["proportion"]) * Fraction(total["proportion"]))
    margin = next(m for m in range(100) if _tail(variance, m) <= 0.05)

    shown = re.findall(r"^  (.+?) {2,}([\d,]+) +([\d,]+)  \+/- (\d+)$", printed, flags=re.M)
    assert len(shown) == 10
    for (name, published, noisy, moe), row in zip(shown, counties, strict=False):
        assert name == f"{row['county']}, {row['state']}"
        assert published == f"{int(row['population']):,}"
        assert abs(int(noisy.replace(",", "")) - int(row["population"])) < 12 * math.sqrt(variance)
        assert int(moe) == margin
    within = _figure(r"([\d,]+) of all are within their margin", printed)
    expected = (1 - _tail(variance, margin)) * len(counties)
    # Independent noise: further off than 8 standard deviations once in 10^15 runs.
    assert abs(float(within) - expected) < 8 * math.sqrt(expected * _tail(variance, margin))
    assert f"Noisy counts of {len(counties):,} counties, by the release's County/total\n" in printed


def test_it_says_that_the_counts_are_published_ones(printed: str) -> None:
    assert "The true counts here are the published ones of the 2010 Census, as an example." in printed


def test_it_carries_published_figures_and_says_where_they_are_from(allocation: dict[str, Any]) -> None:
    counties = files.counties()
    assert (len(counties), sum(int(county["population"]) for county in counties)) == (3142, 308_739_316)
    assert _loss(allocation) == _RHO
    sources = (files.DEMO / "SOURCES.md").read_text(encoding="utf-8")
    carried = [path.name for path in files.DEMO.iterdir() if path.suffix in {".csv", ".json"}]
    assert [name for name in carried if f"`{name}`" not in sources] == []
    assert "3,142 counties" in sources
    assert "308,739,316" in sources


def test_counties_are_noisy_and_meet_the_totals_of_their_states(
    running: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed figures against the published ones; margins against the law of the sum, convolved here."""
    url, key = running
    demo.run(url, key, "counties")
    shown = capsys.readouterr().out
    counties = files.counties()
    rows = re.findall(r"^  (.+?) +(\d+) +([\d,]+) +([\d,]+)  \+/- (\d+) +([\d,]+)$", shown, flags=re.M)
    assert len(rows) == 10
    for name, number, published, noisy, moe, adjusted in rows:
        own = [int(county["population"]) for county in counties if county["state"] == name]
        assert int(number) == len(own)
        assert int(published.replace(",", "")) == int(adjusted.replace(",", "")) == sum(own)
        assert abs(int(noisy.replace(",", "")) - sum(own)) < 12 * math.sqrt(8 * len(own))
        assert int(moe) == _margin_of_a_sum(math.exp(-0.5), len(own))
    assert "51 of 51 totals are met exactly, by 3,142 whole counts." in shown
    assert _figure(r"The least of them is ([\d,]+);", shown) >= 0
    assert max(map(len, shown.partition("The account ")[0].splitlines())) <= 80


def _margin_of_a_sum(q: float, cells: int) -> int:
    """The smallest m with P(|S| > m) <= 0.05 for a sum of geometric noise, by repeated convolution."""
    reach = 60
    mass = [(1 - q) / (1 + q) * q ** abs(x) for x in range(-reach, reach + 1)]
    law = np.array([1.0])
    for _ in range(cells):
        law = np.convolve(law, mass)
    middle = len(law) // 2
    return next(m for m in range(middle) if law[middle - m : middle + m + 1].sum() >= 0.95)


def test_a_second_run_on_one_service_takes_an_account_of_its_own(
    running: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    url, key = running
    used = []
    for _ in range(2):
        demo.run(url, key)
        printed = capsys.readouterr().out
        assert "293764/114921" in printed
        found = re.search(r"The account (\S+) stays; every operation is described at (\S+)/docs\n", printed)
        assert found is not None
        assert found[2] == url
        used.append(found[1])
    assert used[0] == "pl94-2020-us-persons"
    assert re.fullmatch(r"pl94-2020-us-persons-[0-9a-f]{4}", used[1])
    answer = httpx.get(
        f"{url}/v1/accounts", headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False
    ).json()
    assert [account["name"] for account in answer["items"] if account["name"].startswith(used[0])] == used


def test_a_refusal_is_shown_as_the_services_own_words(running: tuple[str, str], tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--url", running[0], "--key", "not-a-key")
    assert done.returncode == 1
    assert done.stderr == "error: POST /v1/accounts: the key is unknown, expired or revoked\n"


@pytest.mark.parametrize(
    ("url", "key", "message"),
    [
        ("http://127.0.0.1:8000", None, "expected both --url and --key"),
        (None, "a-key", "expected both --url and --key"),
        ("127.0.0.1:8000", "a-key", "missing an 'http://' or 'https://' protocol"),
        ("http://127.0.0.1:99999", "a-key", "expected an address|no service answers"),
        ("http://127.0.0.1:8000", "a key\n", "expected a key of printable ASCII characters"),
    ],
)
def test_what_cannot_be_called_is_said(url: str | None, key: str | None, message: str) -> None:
    with pytest.raises(DemoStopped, match=message):
        demo.run(url, key)


@pytest.mark.parametrize("ending", [None, DemoStopped("refused"), KeyboardInterrupt()])
def test_its_own_service_is_gone_however_the_demo_ends(
    forked: None, ending: BaseException | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended: BaseException | None = None
    try:
        with local_service() as (url, _, _):
            assert httpx.get(f"{url}/readyz", timeout=60, trust_env=False).status_code == 200
            assert len(list(tmp_path.iterdir())) == 1
            if ending is not None:
                raise ending
    except (DemoStopped, KeyboardInterrupt) as raised:
        ended = raised
    assert ended is ending
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/readyz", timeout=60, trust_env=False)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_demo_and_its_service(number: signal.Signals, status: int, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with Path(os.devnull).open("wb") as nothing:
        process = Fork(_COMMAND[1:], environment, nothing.fileno(), nothing.fileno())
    try:
        log = _written_log(tmp_path)
        process.send_signal(number)
        assert process.wait(PATIENCE) == status
    finally:
        process.kill()
    assert not log.exists()
    assert list(tmp_path.iterdir()) == []


def test_its_own_service_inherits_nothing_of_a_configured_one(
    forked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_DATABASE_URL", f"sqlite:///{tmp_path / 'real.db'}")
    monkeypatch.setenv("SERVICE_BOOTSTRAP_KEY", "short")
    with local_service() as (url, key, _):
        answer = httpx.get(
            f"{url}/v1/accounts", headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False
        )
    assert answer.json()["items"] == []
    assert not (tmp_path / "real.db").exists()


def test_a_service_that_does_not_start_is_reported_with_the_end_of_its_log(
    forked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.demo.local._free_port", lambda: 0)  # `serve` refuses it
    with pytest.raises(DemoStopped, match=r"(?s)own service did not start.*--port"), local_service():
        pytest.fail("it started")


def _written_log(directory: Path) -> Path:
    """The log of the demo's service, once that has begun to write it: most of the demo's work is still to come."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for found in directory.glob("*/log"):
            if found.stat().st_size:
                return found
        time.sleep(0.01)
    pytest.fail("the demo started no service")


def _tail(variance: Fraction, margin: int) -> float:
    """P(|X| > margin) of the discrete Gaussian: its mass written out and summed."""
    mass = [math.exp(-x * x / (2 * float(variance))) for x in range(-400, 401)]
    return sum(m for x, m in zip(range(-400, 401), mass, strict=True) if abs(x) > margin) / sum(mass)


def test_safetab_prints_the_papers_tables_beside_the_sound_ones(
    running: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    safetab.run(*running)
    said = capsys.readouterr().out
    assert said.isascii()
    assert [line for line in said.splitlines() if len(line) > 80 or line != line.rstrip()] == []
    for name, sound, epsilon in (
        ("pure", "yes", "15.3144"),
        ("rdp, as printed", "no", "13.2"),
        ("rdp, printed formula", "no", "13.5742"),
        ("rdp", "yes", "14.1944"),
        ("zcdp, analytic", "yes", "12.7911"),
        ("zcdp", "yes", "12.1630"),
    ):
        assert re.search(rf"^  {name} +{sound} +{epsilon}( |$)", said, flags=re.M), name
    assert re.search(r"^  Nation, Detailed +6 +4\.27 +4\.2797 +93\.94 % +4\.\d+ +95\.\d+ %$", said, flags=re.M)


def test_safetab_needs_both_an_address_and_a_key() -> None:
    with pytest.raises(DemoStopped, match="both"):
        safetab.run("http://127.0.0.1:1", None)


def test_options_before_a_subcommand_are_refused_and_not_ignored(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--key", "x", "safetab")
    assert done.returncode == 2
    assert "after safetab" in done.stderr


def test_a_sandbox_has_the_demos_accounts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command, home = [*_COMMAND[:-1], "sandbox", "--port", str(port)], tmp_path / "temporary"
    home.mkdir()
    inherited = os.environ | {"TMPDIR": str(home), "SERVICE_DATA_DIR": str(tmp_path / "real")}
    process = subprocess.Popen(command, cwd=_ROOT, env=inherited, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        printed = "".join(iter(process.stdout.readline, "  Ctrl-C stops the sandbox and deletes all of it.\n"))
        assert printed.startswith("Starting takes a minute or two")
        address, keys = printed.split("Sign in at ")[1].split(" with a key:\n")
        steward, board = re.findall("pbl_\\S+|[\\w-]{43}", keys)
        assert address == f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            stated, approver = ({"Authorization": f"Bearer {key}"} for key in (steward, board))
            accounts = client.get("/v1/accounts", headers=stated).json()["items"]
            names = ["household-survey", "pl94-2020-us-persons", "us-counties-2010"]
            assert [one["name"] for one in accounts] == names
            (waiting,) = client.get("/v1/proposals", headers=approver).json()["items"]
            path = f"/v1/accounts/household-survey/releases/{waiting['id']}"
            assert client.post(f"{path}/approve", headers=approver).json()["state"] == "committed"
            for page in ("/", "/guide/concepts", "/no-such-page"):
                assert "Sandbox: sample data, not your ledger" in client.get(page, headers={"Accept": "text/html"}).text
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(home.iterdir()) == []
    assert not (tmp_path / "real").exists()
