"""A sandbox: a service of its own with the demo's accounts, to look at and to try things in, and then gone."""

import signal
from contextlib import suppress

import typer

from service.demo import counties, redistricting, survey
from service.demo.client import connect
from service.demo.local import local_service
from service.demo.text import section

_NOTICE = "Sandbox: sample data, not your ledger"


def serve(host: str, port: int) -> None:
    """Serve a sandbox until Ctrl-C or SIGTERM.

    Raises:
        DemoStopped: it does not start, or refuses something.
    """
    typer.echo("Starting takes a minute or two; then the sandbox prints its address and two keys.\n")
    with suppress(KeyboardInterrupt), local_service(host, port, _NOTICE) as own:
        address, key, _ = own
        pipeline, board = own.make_key("pipeline", "survey-pipeline"), own.make_key("approver", "board")
        with (
            connect(address, key, trust_environment=False) as client,
            connect(address, pipeline, trust_environment=False) as proposing,
        ):
            survey.open_account(client, proposing)
            for show in (redistricting.show, counties.show):
                show(client, address)
                typer.echo()
        typer.echo(section("The sandbox"))
        typer.echo(f"  Sign in at {address} with a key:\n  {key}  of a steward, who plans and registers")
        typer.echo(f"  {board}  of an approver, for whom a release waits")
        typer.echo("  Ctrl-C stops the sandbox and deletes all of it.")
        signal.pause()
