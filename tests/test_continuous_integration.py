"""Steps of continuous integration, where ``make`` and the programs that it looks for only take notes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

_NOTE = """\
#!/usr/bin/env bash
pwd >> "$NOTES/places"; ls -A .. >> "$NOTES/beside"; git status --porcelain >> "$NOTES/changed"
git rev-parse HEAD >> "$NOTES/commits"; echo "${@: -1}" >> "$NOTES/steps"
[[ "${@: -1}" != "$FAILING" ]]
"""
_STEPS = ["check", "test", "test-browser", "test-faults-short"]


def _git(where: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "safe.directory=*")
    done = subprocess.run(["git", *identity, *arguments], cwd=where, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with this script, a commit, and a file that is not committed."""
    made = tmp_path / "checkout"
    (made / ".ci").mkdir(parents=True)
    (made / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    (made / "committed").write_text("")
    _git(made, "init", "--quiet")
    _git(made, "add", "--all")
    _git(made, "commit", "--quiet", "--message=x")
    (made / "stray").write_text("")
    return made


def _run(checkout: Path, failing: str) -> tuple[int, dict[str, list[str]]]:
    programs, notes, temporary = (checkout.parent / name for name in ("programs", "notes", "temporary"))
    for directory in (programs, notes, temporary):
        directory.mkdir()
    for name in ("make", "curl", "haproxy", "nginx", "caddy", "chromium"):
        (programs / name).write_text(_NOTE)
        (programs / name).chmod(0o755)
    settings = {"CI": "true", "PYTHON": sys.executable, "TMPDIR": str(temporary), "NOTES": str(notes)}
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", checkout / ".ci" / "run"],
        env=os.environ | settings | {"PATH": path, "FAILING": failing},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert list(temporary.iterdir()) == [], "nothing stays"
    return done.returncode, {note.name: note.read_text().splitlines() for note in notes.iterdir()}


@pytest.mark.parametrize("detached", [False, True])
def test_every_step_runs_in_a_clone_with_nothing_beside_it(checkout: Path, detached: bool) -> None:
    if detached:
        _git(checkout, "checkout", "--quiet", "--detach")
    status, noted = _run(checkout, failing="none")
    steps = len(noted["steps"])
    assert (status, noted["steps"][:4]) == (0, _STEPS)
    (place,) = set(noted["places"])
    assert not Path(place).is_relative_to(checkout)
    assert noted["beside"] == [Path(place).name] * steps
    assert noted["commits"] == [_git(checkout, "rev-parse", "HEAD")] * steps
    assert noted["changed"] == [], "neither a file too many nor one too few"


def test_a_step_that_fails_ends_it(checkout: Path) -> None:
    status, noted = _run(checkout, failing="test")
    assert (status, noted["steps"]) == (1, _STEPS[:2])
