"""The guide and the pages of problem types.

They are Markdown files of the repository, each rendered once, and need no key.
"""

from collections.abc import Mapping
from functools import cache

from fastapi import APIRouter, Request, Response

from service.api.http.problems import KINDS
from service.errors import NotFound
from service.pages.shell.layout import WEB, page
from service.pages.shell.markdown import Document, render

_INDEX = "/guide"

router = APIRouter(include_in_schema=False)


@router.get("/guide")
def contents(request: Request) -> Response:
    """Render the guide's table of contents."""
    return _chapter(request, _INDEX)


@router.get("/guide/{name}")
def chapter(request: Request, name: str) -> Response:
    """Render a page of the guide."""
    return _chapter(request, f"{_INDEX}/{name}")


@router.get("/problems")
def problems(request: Request) -> Response:
    """Render the list of problem codes."""
    return page(request, "explanations.html", {"kinds": KINDS})


@router.get("/problems/{code}")
def problem(request: Request, code: str) -> Response:
    """Render the page of a problem type: its meaning, its causes and the remedy."""
    kind = KINDS.get(code)
    if kind is None:
        raise NotFound("problem", code)
    return page(request, "explanation.html", {"code": code, "kind": kind, "document": document(f"problems/{code}")})


def _chapter(request: Request, address: str) -> Response:
    pages = chapters()
    if address not in pages:
        raise NotFound("page of the guide", address.rpartition("/")[2])
    return page(request, "guide.html", {"document": pages[address], "chapters": pages})


@cache
def chapters() -> Mapping[str, Document]:
    """Return the guide's pages by address, in the order of the first page's links."""
    first = document("guide/index")
    linked = dict.fromkeys(link for link in first.links if link.startswith(f"{_INDEX}/"))
    return {_INDEX: first} | {link: document(link.removeprefix("/")) for link in linked}


@cache
def document(name: str) -> Document:
    """Return a rendered file below ``web``, named without ``.md``."""
    return render((WEB / f"{name}.md").read_text("utf-8"), name.partition("/")[0], address_of)


def address_of(name: str) -> str:
    """Return the address of a file's page."""
    return _INDEX if name == "guide/index" else f"/{name}"
