"""Lines of the service that ask for the type of a value which should answer for itself."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import service

_SERVICE = Path(service.__file__).parent


def questions(package: str, but: set[str], *own: Path) -> Counter[str]:
    """Count ``isinstance``, ``case``, ``is`` and ``in`` on classes of a package, by files outside of ``own``.

    Args:
        package: where the classes are imported from, by whatever name.
        but: names that may be asked for.
    """
    return Counter(
        str(path.relative_to(_SERVICE))
        for path in _SERVICE.rglob("*.py")
        if not any(path.is_relative_to(one) for one in own)
        for _ in _asked(ast.parse(path.read_text()), package, but)
    )


def _asked(module: ast.Module, package: str, but: set[str]) -> Iterator[ast.AST]:
    names = {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package)
        for alias in node.names
        if alias.name not in but
    }
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]):
                asked: ast.AST = kind
            case ast.MatchClass(cls=kind):
                asked = kind
            case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()], comparators=[kind]):
                asked = kind
            case _:
                continue
        if any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(asked)):
            yield node
