"""Lines that commands print, in which names and ids of rows stand that anybody may have written."""

import re

import typer

_PLAIN = re.compile("[a-z0-9._-]+")


def tell(line: str) -> None:
    """Print one line."""
    typer.echo(one_line(line))


def one_line(line: str) -> str:
    """Return a line in which characters are escaped that would end it, or that a terminal obeys."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)


def plain(name: object) -> str:
    """Return the name of an account; what the service takes for no name is quoted."""
    return name if isinstance(name, str) and _PLAIN.fullmatch(name) else repr(name)
