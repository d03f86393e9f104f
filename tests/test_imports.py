"""Imports go api -> ledger -> privacy, noise, and never back; what is pure stays pure."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_MODULES = sorted((_ROOT / "service").rglob("*.py"))
_IMPURE = {"asyncio", "datetime", "logging", "os", "random", "secrets", "socket", "sqlite3", "subprocess", "time"}
_WEB = {"fastapi", "starlette", "uvicorn"}


@dataclass(frozen=True)
class _Layer:
    """What the modules of one part may import."""

    service: frozenset[str]  # other parts of the service
    packages: frozenset[str] | None = None  # besides the standard library; None: any but the web framework
    pure: bool = False  # no clock, environment, randomness or input and output
    web: bool = False
    but: frozenset[str] = frozenset()  # what is pure in all else may import


def _layer(
    *service: str,
    packages: set[str] | None = None,
    pure: bool = False,
    web: bool = False,
    but: frozenset[str] = frozenset(),
) -> _Layer:
    return _Layer(frozenset(service), None if packages is None else frozenset(packages), pure, web, but)


_LAYERS = {
    "__init__": _layer(packages=set()),
    "errors": _layer(packages=set(), pure=True),
    "privacy": _layer("errors", packages={"flint", "numpy", "scipy"}, pure=True),
    "noise": _layer(
        "errors", "privacy", packages={"cryptography", "flint", "numpy"}, pure=True, but=frozenset({"secrets"})
    ),
    "postprocess": _layer("errors", packages={"numpy", "scipy"}, pure=True),
    "empirical": _layer(packages={"numpy", "scipy"}, pure=True),
    "settings": _layer("errors"),
    "configuration": _layer("settings"),
    "memory_privacy": _layer(packages=set()),
    "ledger": _layer("__init__", "errors", "noise", "privacy", "settings"),
    "api": _layer(
        "__init__",
        "empirical",
        "errors",
        "ledger",
        "memory_privacy",
        "noise",
        "postprocess",
        "privacy",
        "settings",
        web=True,
    ),
    "pages": _layer("__init__", "api", "errors", "ledger", web=True),
    "jobs": _layer("errors", "ledger", packages={"structlog"}),
    "connections": _layer("api", packages={"h11", "uvicorn"}, web=True),
    "tracing": _layer(
        "__init__", "api", "ledger", packages={"fastapi", "opentelemetry", "starlette", "structlog"}, web=True
    ),
    "app": _layer(
        *("__init__", "api", "errors", "jobs", "ledger", "logs", "noise", "pages", "privacy", "settings", "tracing"),
        web=True,
    ),
    "demo": _layer("errors", packages={"httpx", "typer"}),  # a client: what it knows of the service it asks over HTTP
    "audit": _layer("empirical", "noise", "privacy", packages={"numpy"}),
    "audit_safetab": _layer("audit", "noise", "privacy", packages={"numpy"}),
    "reproduce": _layer("empirical", packages={"numpy"}),
    "logs": _layer(packages={"structlog"}),
    "installation": _layer("errors", "ledger", "logs", "settings", packages={"sqlalchemy"}),
    "acknowledging": _layer("errors", "installation", "ledger", packages={"sqlalchemy", "typer"}),
    "auditing": _layer("errors", "installation", "ledger", packages={"sqlalchemy", "typer"}),
    "key_commands": _layer("installation", "ledger", packages={"sqlalchemy", "typer"}),
    "server": _layer(
        *("__init__", "app", "connections", "errors", "installation", "ledger", "settings"),
        packages={"fastapi", "starlette", "structlog", "uvicorn"},
        web=True,
    ),
    "__main__": _layer(
        *(
            "app",
            "audit",
            "audit_safetab",
            "acknowledging",
            "auditing",
            "configuration",
            "demo",
            "errors",
            "installation",
            "key_commands",
            "ledger",
            "memory_privacy",
            "reproduce",
            "server",
            "settings",
        ),
        packages={"numpy", "typer", "yaml"},
    ),
}


def _part(module: list[str]) -> str:
    return module[1] if len(module) > 1 else "__init__"


def _imports(path: Path) -> Iterator[list[str]]:
    """Every imported dotted name, at any depth of the file, relative ones made absolute."""
    package = path.relative_to(_ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            submodules = base == ["service"]  # `from service import x` names a part, or something of __init__
            yield from ([*base, alias.name] if submodules and alias.name in _LAYERS else base for alias in node.names)


def _faults(path: Path) -> Iterator[str]:
    part = path.relative_to(_ROOT / "service").with_suffix("").parts[0]
    layer = _LAYERS.get(part)
    if layer is None:
        yield f"service/{part} is in no layer: give it one here"
        return
    for module in _imports(path):
        name = module[0]
        if name == "service":
            if _part(module) != part and _part(module) not in layer.service:
                yield f"{part} must not import {_part(module)}"
        elif name in sys.stdlib_module_names:
            if layer.pure and name in _IMPURE - layer.but:
                yield f"{part} is pure and must not import {name}"
        elif (name in _WEB and not layer.web) or (layer.packages is not None and name not in layer.packages):
            yield f"{part} must not import {name}"


@pytest.mark.parametrize("path", _MODULES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    assert sorted(set(_faults(path))) == []


def test_the_layers_have_no_cycle() -> None:
    order: list[str] = []
    while len(order) < len(_LAYERS):
        free = [part for part in _LAYERS if part not in order and _LAYERS[part].service <= set(order)]
        assert free, f"a cycle among {sorted(set(_LAYERS) - set(order))}"
        order += free
    assert order.index("privacy") < order.index("ledger") < order.index("api")


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("privacy/x.py", "import fastapi", "privacy must not import fastapi"),
        ("privacy/x.py", "def f():\n    from sqlalchemy import text", "privacy must not import sqlalchemy"),
        ("privacy/x.py", "from os import environ", "privacy is pure and must not import os"),
        ("privacy/x.py", "from service.ledger import tables", "privacy must not import ledger"),
        ("noise/x.py", "from ..ledger.tables import Base", "noise must not import ledger"),
        ("noise/x.py", "from datetime import UTC", "noise is pure and must not import datetime"),
        ("ledger/x.py", "from service import api", "ledger must not import api"),
        ("ledger/x.py", "from starlette.requests import Request", "ledger must not import starlette"),
        ("brand_new.py", "", "service/brand_new is in no layer: give it one here"),
    ],
)
def test_the_rules_see_a_breach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, source: str, fault: str
) -> None:
    file = tmp_path / "service" / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "_ROOT", tmp_path)
    assert list(_faults(file)) == [fault]
