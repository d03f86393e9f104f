"""The guide and the problems' pages: Markdown files of the repository, open without a key, rendered once."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Response

from service.api.problems import KINDS
from service.errors import NotFound
from service.pages.markdown import Document, render
from service.pages.templates import page

_WEB = Path(__file__).parent.parent / "web"
_INDEX = "/guide"

router = APIRouter(include_in_schema=False)


@router.get("/guide")
def contents() -> Response:
    """What the guide has."""
    return _chapter(_INDEX)


@router.get("/guide/{name}")
def chapter(name: str) -> Response:
    """A page of the guide."""
    return _chapter(f"{_INDEX}/{name}")


@router.get("/problems")
def problems() -> Response:
    """All codes of problems."""
    return page("problems.html", title="Problems", kinds=KINDS)


@router.get("/problems/{code}")
def problem(code: str) -> Response:
    """What a problem's type means, and what to do."""
    kind = KINDS.get(code)
    if kind is None:
        raise NotFound("problem", code)
    return page("problem.html", title=kind.title, code=code, kind=kind, document=_document(f"problems/{code}"))


def _chapter(address: str) -> Response:
    listed = chapters()
    document = listed.get(address)
    if document is None:
        raise NotFound("page of the guide", address.rpartition("/")[2])
    return page("guide.html", title=document.title, address=address, document=document, chapters=listed)


@cache
def chapters() -> Mapping[str, Document]:
    """The guide's pages by address, in the order in which the first one links to them."""
    first = _document("guide/index")
    linked = dict.fromkeys(link for link in first.links if link.startswith(f"{_INDEX}/"))
    return {_INDEX: first} | {link: _document(link.removeprefix("/")) for link in linked}


@cache
def _document(name: str) -> Document:
    path = _WEB / f"{name}.md"
    return render(path.read_text("utf-8"), path.parent.name, address_of)


def address_of(name: str) -> str:
    """A file's page, from its path below ``web`` without ``.md``."""
    return _INDEX if name == "guide/index" else f"/{name}"
