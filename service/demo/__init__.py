"""The service at its job, in one command: a client that talks HTTP only, with all that it needs in this directory."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Literal

import httpx
import typer

from service.demo import counties, redistricting, report
from service.demo.client import DemoStopped, connect
from service.demo.local import local_service

Demo = Literal["redistricting", "counties"]
_SHOWN: dict[Demo, Callable[[httpx.Client, str], str]] = {
    "redistricting": redistricting.show,
    "counties": counties.show,
}


def run(url: str | None, key: str | None, demo: Demo = "redistricting") -> None:
    """Show the service at one of its jobs, and print what it says.

    Without ``url`` and ``key`` a service is started for it, on an empty database, and stopped at the end.

    Raises:
        DemoStopped: the service refuses something, or does not answer.
    """
    if (url is None) != (key is None):
        raise DemoStopped("expected both --url and --key, or neither")
    with ExitStack() as stack:
        if url is None or key is None:
            typer.echo("Starting a service of its own, on an empty database ...\n")
            address, token, _ = stack.enter_context(local_service())
        else:
            address, token = url, key
        # A proxy of the environment does not reach this machine's own addresses.
        client = stack.enter_context(connect(address, token, trust_environment=url is not None))
        account = _SHOWN[demo](client, address)
        typer.echo(report.ending(account, address if url is not None else None))
