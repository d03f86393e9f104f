"""A sandbox: a service of its own with the demo's accounts, to look at and to try things in, and then gone."""

import signal
from contextlib import suppress

import typer

from service.demo import counties, redistricting
from service.demo.client import connect
from service.demo.local import local_service
from service.demo.text import section

_NOTICE = "Sandbox: sample data, not your ledger"


def serve(host: str, port: int) -> None:
    """Serve a sandbox until Ctrl-C or SIGTERM.

    Raises:
        DemoStopped: it does not start, or refuses something.
    """
    typer.echo("Starting takes about a minute; then the sandbox prints its address and a key.\n")
    with suppress(KeyboardInterrupt), local_service(host, port, _NOTICE) as (address, key):
        with connect(address, key, trust_environment=False) as client:
            for show in (redistricting.show, counties.show):
                show(client, address)
                typer.echo()
        typer.echo(section("The sandbox"))
        typer.echo(f"  Sign in at {address} with the key\n  {key}\n  Ctrl-C stops the sandbox and deletes all of it.")
        signal.pause()
