"""The repository itself: what lies at its top, that it names no package registry and no place outside, its locks."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import service
from tests.outside import outside

_ROOT = Path(__file__).resolve().parents[1]
_WEB = _ROOT / "service" / "web"
_TOP = {
    *(".ci", ".dockerignore", ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md", "Dockerfile", "LICENSE", "Makefile"),
    *("README.md", "benchmarks", "client", "compose.yaml", "deploy", "docs", "examples", "migrations", "openapi.yaml"),
    "pyproject.toml",
    *(f"requirements{which}.lock" for which in ("", "-chart", "-dev", "-otel", "-spark")),
    *("docs", "service", "tests"),
}
# In pieces, since this file is searched as well.
_HOSTS = [".".join(name) for name in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"))]
_ADDRESS = re.compile("|".join([*map(re.escape, _HOSTS), r"\w://[^\s\"']*/simp" + r"le\b"]))
_UP = ".." + "/"
_LOCKED = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^\s;]+)(?: ; [^\\]+?)?(?: --hash=sha256:[0-9a-f]{64})+")


def _git(*arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout


def _files() -> list[str]:
    """Return the files that are committed, or would be by ``git add --all``: stray files are found early."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return [name for name in listed if name and (_ROOT / name).is_file()]


def _texts() -> Iterator[tuple[str, str]]:
    for name in _files():
        try:
            yield name, (_ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture
            continue


def _lock(name: str) -> list[str]:
    """The requirements of a lock, one to a line, without its comments."""
    lines = (line.partition("#")[0].rstrip() for line in (_ROOT / name).read_text(encoding="utf-8").splitlines())
    return [" ".join(line.split()) for line in "\n".join(filter(None, lines)).replace("\\\n", " ").splitlines()]


def _versions(name: str) -> dict[str, str]:
    return {found["name"]: found["version"] for found in map(_LOCKED.fullmatch, _lock(name)) if found}


def test_the_top_holds_what_it_should_and_nothing_else() -> None:
    assert {Path(name).parts[0] for name in _files()} == _TOP


def test_no_text_names_a_package_registry() -> None:
    named = [name for name, text in _texts() if _ADDRESS.search(text)]
    assert named == []


@pytest.mark.parametrize("address", ["https://" + _HOSTS[0] + "/x", "http://mirror.example/root/simp" + "le/numpy/"])
def test_the_search_knows_a_registry_when_it_sees_one(address: str) -> None:
    assert _ADDRESS.search(f"install from {address} only")


def test_no_text_names_a_place_outside_the_checkout() -> None:
    carried = _WEB / "static" / "swagger-ui"  # others' code
    texts = [(name, text) for name, text in _texts() if not (_ROOT / name).is_relative_to(carried)]
    assert {name: found for name, text in texts if (found := outside(_ROOT, name, text))} == {}


def test_no_link_leads_outside_the_checkout() -> None:
    modes = (line.split(maxsplit=3) for line in _git("ls-files", "--stage", "-z").split("\0") if line)
    special = {name: mode for mode, _, _, name in modes if mode not in {"100644", "100755"}}
    assert special == {}, "neither links nor other repositories"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tests/a.py", f"# the value is {_UP}reference/values.json"),
        ("README.md", f"[sources]({_UP}elsewhere/SOURCES.md)"),
        ("service/web/guide/a.md", f"[sources]({_UP}nothing.md)"),
        ("service/web/guide/a.md", f"[sources]({_UP * 4}README.md)"),
        ("tests/api/a.py", "Path(__file__).resolve().parents[3]"),
        ("tests/api/a.py", "Path(__file__).parent.parent.parent.parent"),
        ("tests/api/a.py", "_HERE = Path(__file__).resolve()\n_DATA = _HERE.parents[2] / '..' / 'x'"),
        ("tests/api/a.py", "from tests.processes import ROOT\nx = ROOT.parent / 'data'"),
        ("tests/api/a.py", "ROOT.joinpath('tests', '..', '..', 'data')"),
        ("tests/a.py", "# the figures are shared" + "/data/counties.csv"),
        ("tests/a.py", "open('/ho" + "me/somebody/values.json')"),
        ("Makefile", f"include $(CURDIR)/{_UP}common.mk"),
        (".ci/run", f'cd "$(dirname "$0")/{_UP * 2}"'),
        ("Makefile", "\tcd " + _UP.rstrip("/") + " && make"),
        ("README.md", "Keep it in ~" + "/ledger"),
    ],
)
def test_the_search_knows_a_place_outside_when_it_sees_one(name: str, text: str) -> None:
    assert outside(_ROOT, name, text) != []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("service/web/guide/a.md", f"[a page]({_UP}problems/conflict.md) and GET .../balance"),
        (".ci/run", f'cd "$(dirname "$0")/{_UP[:-1]}"'),
        ("tests/api/a.py", "Path(__file__).resolve().parents[2] / 'service'"),
        ("tests/a.py", "get('/static/../app.py'), name in ('a/b', '..', '.')\nfrom ..ledger import x"),
        ("deploy/a.cfg", "# SERVICE_1 .. SERVICE_3, http://mirror.example/ro" + "ot/x, /var/lib/ledger, /tmp/x"),
    ],
)
def test_the_search_takes_nothing_else_for_a_place_outside(name: str, text: str) -> None:
    assert outside(_ROOT, name, text) == []


@pytest.mark.parametrize("lock", [f"requirements{which}.lock" for which in ("", "-chart", "-dev", "-otel", "-spark")])
def test_every_locked_requirement_has_a_version_and_hashes(lock: str) -> None:
    requirements = _lock(lock)
    assert [line for line in requirements if not _LOCKED.fullmatch(line)] == []  # nor an option or address of any sort
    assert len(requirements) > 20


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-otel.lock"])
def test_the_development_lock_agrees_with_those_that_ship(lock: str) -> None:
    development = _versions("requirements-dev.lock")
    runtime = _versions(lock)
    assert {name: development.get(name) for name in runtime} == runtime


def test_what_the_project_asks_for_is_locked() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == service.__version__

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower() for requirement in requirements}

    assert names(project["dependencies"]) <= set(_versions("requirements.lock"))
    for extra in ("chart", "dev", "otel", "spark"):
        assert names(project["optional-dependencies"][extra]) <= set(_versions(f"requirements-{extra}.lock"))


@pytest.mark.parametrize(
    "name", ["data/ledger.db", "data/ledger.db-wal", "service.secret", "secret/service.secret", "service.high-water"]
)
def test_neither_the_ledger_nor_its_secret_can_be_committed(name: str) -> None:
    assert _git("check-ignore", "--no-index", name).strip() == name


def test_the_documentation_page_names_no_other_host() -> None:
    ours = [_WEB / "templates" / "docs.html", _WEB / "static" / "docs.js"]
    assert [path.name for path in ours if "//" in re.sub(r"^\s*//|\s// ", "", path.read_text(), flags=re.M)] == []
    style = (_WEB / "static" / "swagger-ui" / "swagger-ui.css").read_text(encoding="utf-8")
    assert set(re.findall(r"url\(\s*[\"']?(.{5})", style)) == {"data:"}
    assert "@import" not in style


def test_no_template_has_an_inline_script() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (_WEB / "templates").rglob("*.html")]
    assert [re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|\son\w+=", page) for page in pages] == [[] for _ in pages]
    assert [path.name for path in _WEB.rglob("*.?s*") if b"sourceMappingURL" in path.read_bytes()] == []


def test_release_notes_are_those_of_one_version() -> None:
    """The changelog has notes of the present version, and of each earlier one between two headings."""
    headings = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}$", _CHANGELOG, re.MULTILINE)
    assert headings[0] == service.__version__
    assert len(headings) > 5
    notes = [_notes(f"VERSION={version}") for version in headings]
    assert [status for status, _, _ in notes] == [0] * len(headings)
    assert all(text.startswith(f"## [{version}] - ") for version, (_, text, _) in zip(headings, notes, strict=True))
    assert "".join(text for _, text, _ in notes) == _CHANGELOG[_CHANGELOG.index(f"## [{headings[0]}]") :]
    assert _notes() == notes[0]
    assert _notes("VERSION=0.0.0") == (2, "", "CHANGELOG.md has no version 0.0.0")


_CHANGELOG = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _notes(*arguments: str) -> tuple[int, str, str]:
    """Run the target; return its status, what it prints and the first line of its complaint."""
    done = subprocess.run(
        ["make", "--silent", "release-notes", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr.partition("\n")[0]
