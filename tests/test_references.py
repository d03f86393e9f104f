"""References: all that the code cites can be looked up in the repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_KEYS = [line.split("|")[1].strip() for line in (ROOT / "docs" / "references.md").read_text().splitlines()[7:]]
# Authors, and a year: "Bun and Steinke 2016", "Haney et al. 2021", "Ellis, Monroe, Newman 1976".
_AUTHOR = r"[A-Z][a-zé]+"
_CITED = re.compile(rf"{_AUTHOR}(?:(?:,| and|, and) {_AUTHOR})*(?: et al\.)? (?:19|20)\d\d(?!-)\b")
_NO_PAPERS = re.compile(r"The \d{4}|Washington State, 1940")
_TEXTS = sorted(
    [
        *(path for folder in ("service", "benchmarks") for path in (ROOT / folder).rglob("*.py")),
        *(path for path in (ROOT / "docs").rglob("*.md") if path.name != "references.md"),
        ROOT / "ARCHITECTURE.md",
    ]
)
_DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"])
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def test_every_key_is_there_once() -> None:
    assert len(_KEYS) > 20
    assert len(set(_KEYS)) == len(_KEYS)


@pytest.mark.parametrize("path", _TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_citation_has_its_source(path: Path) -> None:
    text = re.sub(r"\s*\n\s*(?:#\s*)?", " ", path.read_text(encoding="utf-8"))
    cited = {one for one in _CITED.findall(text) if not _NO_PAPERS.fullmatch(one)}
    assert {one for one in cited if not any(one in key or key in one for key in _KEYS)} == set()
    named = set(re.findall(r"docs/[a-z-]+(?:/[a-z0-9-]+)?\.md|(?:service|tests|benchmarks)/[a-z_/]+\.py", text))
    assert {name for name in named if not (ROOT / name).exists()} == set()
    assert not re.search(r"\bseed 00\d\b", text)


@pytest.mark.parametrize("path", _DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    for name, anchor in _LINK.findall(path.read_text(encoding="utf-8")):
        target = path.parent / name if name else path
        assert target.exists(), name
        assert not anchor or anchor in _anchors(target), f"{name}#{anchor}"


def _anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings: lower case, without punctuation, hyphens for blanks."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_decision_has_a_number_a_date_and_its_line_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert [int(path.name[:4]) for path in pages] == list(range(1, len(pages) + 1))
    for path in pages:
        title, _, dated, *_ = path.read_text(encoding="utf-8").splitlines()
        line = f"| [{path.name[:4]}]({path.name}) | {title.removeprefix(f'# {path.name[:4]}. ')} | {dated[:10]} |"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", dated[:10]), path.name
        assert line in index, path.name
