"""The command line: ``python -m service``."""

import gc
import sys
from collections.abc import Iterable
from typing import Annotated, Literal

if __name__ == "__main__":
    gc.set_threshold(200_000)  # imports leave no garbage, and looking for it took a quarter of a command's start time

import typer
import yaml

from service.cli import acknowledge, key_commands, ledger_commands, package_commands
from service.cli.configuration import reference
from service.errors import ServiceError
from service.installation import naming, open_place, settings_of_command
from service.ledger.journal.chains import BrokenChain
from service.ledger.storage.migrate import migrate as migrate_database
from service.memory_privacy import forbid_dumps
from service.settings import logged

app = typer.Typer(no_args_is_help=True, add_completion=False, help="A privacy-budget ledger for statistical agencies.")
demo_app = typer.Typer(invoke_without_command=True, help="A demonstration of the service, over HTTP.")
app.add_typer(key_commands.app, name="keys")
app.add_typer(demo_app, name="demo")

ServiceUrl = Annotated[str | None, typer.Option(help="A running service; by default one is started for the demo.")]
ServiceKey = Annotated[str | None, typer.Option(help="A steward's key of that service.")]


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 for all IPv4 addresses.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
) -> None:
    """Serve the HTTP interface and the web pages, until SIGTERM."""
    from service import server  # noqa: PLC0415 - the other commands start faster without

    server.serve(settings_of_command(), host, port)


@app.command()
def migrate() -> None:
    """Migrate the database to this version of the service; back it up before."""
    settings = settings_of_command()
    database = open_place(settings, begin=True)
    with naming(database):
        migrate_database(database)
    database.close()
    typer.echo(f"The database is migrated: {logged(settings)['database_url']}")


@app.command()
def openapi() -> None:
    """Print the contract, the content of openapi.yaml."""
    from service.app import openapi_document  # noqa: PLC0415 - the other commands start faster without

    sys.stdout.write(yaml.safe_dump(openapi_document(), sort_keys=False, allow_unicode=True, width=120))


@app.command("settings")
def list_settings() -> None:
    """Print the reference of all settings, as Markdown."""
    sys.stdout.write(reference())


@demo_app.callback()
def demo(context: typer.Context, url: ServiceUrl = None, key: ServiceKey = None) -> None:
    """Register the 2020 Census redistricting release and draw county counts, over HTTP."""
    if context.invoked_subcommand is not None:
        if url or key:
            raise typer.BadParameter(f"expected --url and --key after {context.invoked_subcommand}")
        return
    from service.demo import run  # noqa: PLC0415 - the other commands start faster without

    run(url, key)


@demo_app.command("counties")
def demo_counties(url: ServiceUrl = None, key: ServiceKey = None) -> None:
    """Draw a bottom-up table of the counties, and meet the totals of the states."""
    from service.demo import run  # noqa: PLC0415 - the other commands start faster without

    run(url, key, "counties")


@demo_app.command("safetab")
def demo_safetab(url: ServiceUrl = None, key: ServiceKey = None) -> None:
    """Compare SafeTab's analyses: as the paper prints them, by its formulas, by sound bounds and by tight ones."""
    from service.demo.safetab import run  # noqa: PLC0415 - the other commands start faster without

    run(url, key)


@app.command()
def sandbox(
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 for all IPv4 addresses.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8001,
) -> None:
    """Serve a ledger of its own with the demo's accounts, and delete all of it at the end."""
    from service.demo import sandbox as own  # noqa: PLC0415 - the other commands start faster without

    own.serve(host, port)


@app.command()
def reproduce(what: Annotated[Literal["table-sa1", "figure-1"], typer.Argument()]) -> None:
    """Reproduce the papers' figures of empirical privacy loss; exit with 1 where a figure is missed."""
    from service.cli import reproduce as reproduction  # noqa: PLC0415 - the other commands start faster without

    _report(reproduction.table_sa1() if what == "table-sa1" else reproduction.figure_one())


@app.command()
def audit(
    size: Annotated[
        int,
        typer.Option(
            min=1000, max=10_000_000, help="Values drawn from each distribution, and runs with and without one record."
        ),
    ] = 1_000_000,
) -> None:
    """Bound the loss of the service's own noise and of SafeTab from below; exit with 1 where a claim is refuted."""
    import numpy as np  # noqa: PLC0415

    from service.cli import noise_audit as own_audit, noise_audit_safetab  # noqa: PLC0415 - the other commands start faster without

    subjects = [*own_audit.own_noise(), *noise_audit_safetab.own_safetab()]
    _report(own_audit.report(own_audit.audit(subjects, size, np.random.default_rng())))


def _report(lines: Iterable[tuple[str, bool]]) -> None:
    """Print lines; exit with 1 where a line reports a fault."""
    faults = 0
    for line, fault in lines:
        typer.echo(line)
        faults += fault
    if faults:
        raise typer.Exit(1)


app.command()(ledger_commands.verify)
app.command()(ledger_commands.verify_receipt)
app.command()(ledger_commands.recompute)
app.command()(ledger_commands.export)
app.command()(ledger_commands.backup)
app.command("import")(ledger_commands.import_export)
app.command()(package_commands.package)
app.command()(package_commands.verify_package)
app.command()(acknowledge.acknowledge)


def main() -> None:
    """Run a command; a refusal is one line and exit status 1."""
    gc.freeze()
    forbid_dumps()
    try:
        app()
    except ServiceError as error:
        typer.echo(f"error: {error.for_operator or error}", err=True)
        raise SystemExit(1) from None
    except BrokenChain as broken:
        typer.echo(f"error: the installation's journal is not sound: {broken}; run verify", err=True)
        raise SystemExit(1) from None
    except OSError as error:  # without a name it is that of a stream, such as one to a full disk
        typer.echo(f"error: {error.filename or 'standard output'}: {error.strerror or error}", err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
