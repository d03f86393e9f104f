"""Every example of the README, the guide and the problems' pages, run against a real server."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.api.http.problems import KINDS
from service.privacy.mechanisms import MECHANISMS
from service.privacy.plans import NODES
from tests.api.calls import STEWARD
from tests.documents import FILES, ROOT, WEB, Example, Session, differs, examples_of, listings, normalised
from tests.processes import Served, service
from tests.r_sessions import install


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with service(tmp_path_factory.mktemp("documents"), helper_processes="2") as running:
        yield running


@pytest.fixture(scope="module")
def r_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library with the R package; an empty one where R is not here."""
    library = tmp_path_factory.mktemp("r_library")
    if shutil.which("Rscript") is not None:
        install(library)
    return library


@pytest.mark.parametrize(
    "path", [path for path in FILES if examples_of(path)], ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_examples_print_what_the_document_says(
    path: Path, served: Served, r_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE", served.address)
    monkeypatch.setenv("KEY", STEWARD)
    monkeypatch.setenv("R_LIBS", str(r_library))
    monkeypatch.chdir(ROOT)
    skipped = set()
    with Session(served.address) as session:
        for example in examples_of(path):
            if example.language == "r" and shutil.which("Rscript") is None:
                skipped.add("Rscript is missing: install what .ci/run names")
                continue
            printed = session.run(example)
            if example.output is not None:
                assert differs(example, printed) is None, f"line {example.line}: {differs(example, printed)}"
            else:
                assert printed == "", f"line {example.line} prints something"
    if skipped:
        pytest.skip("; ".join(skipped))


@pytest.mark.parametrize(
    "path", [path for path in FILES if examples_of(path)], ids=lambda path: str(path.relative_to(ROOT))
)
def test_an_output_is_that_of_the_listing_before_it(path: Path) -> None:
    before: list[str] = []
    for words, _, line in listings(path):
        if words[:1] == ["output"]:
            assert "run" in before, f"line {line}"
        assert all(word in ("run", "noise") for word in words[1:]), f"line {line}"
        before = words


def test_no_document_names_this_machine() -> None:
    assert [path.name for path in FILES if re.search(r"/(tmp|home|work|root)/", path.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    ("page", "heads", "registered"),
    [
        ("mechanisms.md", "| type | noise |", MECHANISMS),
        ("composition.md", "| node | meaning |", NODES),
    ],
)
def test_the_guides_tables_have_all_mechanisms_and_nodes(page: str, heads: str, registered: dict[str, object]) -> None:
    text = (WEB / "guide" / page).read_text("utf-8")
    rows = text[text.index(heads) :].split("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", rows, flags=re.M)) == sorted(registered)


def test_the_guides_page_on_the_interface_names_each_node_and_mechanism() -> None:
    page = (WEB / "guide" / "interface.md").read_text("utf-8")
    (paragraph,) = re.findall(r"^A release is a plan: .*?\n\n", page, flags=re.M | re.S)
    assert [name for name in (*NODES, *MECHANISMS) if f"`{name}`" not in paragraph] == []


def test_every_problem_has_its_page_and_no_other_has() -> None:
    assert {path.stem for path in (WEB / "problems").glob("*.md")} == set(KINDS)


@pytest.mark.parametrize("code", sorted(KINDS))
def test_a_problems_page_says_when_it_happens_and_what_to_do_and_shows_it(code: str) -> None:
    """That an output is what the service answers, the examples' test sees.

    What a server in order does not answer is JSON on the page, and made by a test of its own (tests/pages).
    """
    path = WEB / "problems" / f"{code}.md"
    headings = re.findall(r"^(##+) (.*)$", path.read_text("utf-8"), flags=re.M)
    assert headings[:2] == [("##", "On a page"), ("##", "In a program")]
    assert headings[2:] == [("###", "When it happens"), ("###", "Example"), ("###", "What to do")]
    (shown,) = [json.loads(text) for words, text, _ in listings(path) if words in (["output"], ["json"])]
    assert (shown["type"], shown["status"], shown["title"]) == (
        f"/problems/{code}",
        KINDS[code].status,
        KINDS[code].title,
    )


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("rho 0.123456789012345 for 0b7e2f7c-9d0f-4c39-9f5e-1f5d3c7d2a11 ", True),
        ("rho 0.123456789012349 for 5a0f3f0e-8a52-4c55-9f0e-2b3f8d1c7e60\n", True),
        ("rho 0.123456789112345 for 0b7e2f7c-9d0f-4c39-9f5e-1f5d3c7d2a11", False),
        ("rho 0.123456789012345 of 0b7e2f7c-9d0f-4c39-9f5e-1f5d3c7d2a11", False),
        ("rho 0.123456789012345 for nobody", False),
    ],
)
def test_only_ids_and_last_digits_may_differ(printed: str, same: bool) -> None:
    said = "rho 0.123456789012345 for 6f1c7a4e-2b60-4a2b-b7c6-0c0f8a4a9e55\n"
    assert (differs(Example("python", "", said, False, 1), printed) is None) == same


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("[1204, 377] +/- 10", True),
        ("[1190,  401] +/- 10", True),
        ("[1190, 401, 7] +/- 10", False),
        ("[1190, 501] +/- 10", False),
        ("[1190, 401] - 10", False),
        ("", False),
    ],
)
def test_noisy_counts_may_differ_a_little(printed: str, same: bool) -> None:
    assert (differs(Example("python", "", "[1201, 380] +/- 10\n", True, 1), printed) is None) == same


def test_what_changes_has_a_name_instead() -> None:
    key, moment = "pbl_" + "a1-_" * 8, "2026-11-21T23:15:52.434088Z"
    assert normalised(f"{key} at {moment}, {'0f' * 32}  \n\n") == "<key> at <time>, <hash>"
    assert os.linesep not in normalised("a\n")
