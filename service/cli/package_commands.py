"""Commands that make and verify publication packages."""

from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.ledger_commands import FileArgument, naming_file, write_whole
from service.installation import open_installation, settings_of_command
from service.ledger.installation.signing import signer_of
from service.ledger.storage import clock
from service.ledger.verification.packages import check_package


def package(
    account: Annotated[str, typer.Argument(help="The account of the release.")],
    release: Annotated[str, typer.Argument(help="The id of a committed release.")],
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The package; an earlier one is replaced.")],
    confidence: Annotated[str, typer.Option(help="The confidence of the margins of error.")] = "0.95",
) -> None:
    """Make the signed publication package of a release, as over HTTP but however many noisy counts it has."""
    from service.api.computations.accuracy import read_confidence  # noqa: PLC0415 - the other commands start faster without
    from service.api.publication.package import packed, publication_of  # noqa: PLC0415
    from service.api.schemas.guarantees import cost_of  # noqa: PLC0415

    database, secret = open_installation(settings_of_command())
    try:
        asked = read_confidence(confidence, "/confidence")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--confidence") from None

    def cost(owner: Any, found: Any) -> dict[str, Any]:
        return cost_of(found.plan, owner.neighbouring, (found.delta,))

    with database.read() as connection:
        published = publication_of(connection, account, release, cost, asked, clock.now())
    write_whole(packed(database, signer_of(secret), published), file)
    database.close()
    typer.echo(f"{file}: the release {published.release.name!r} of {account!r} at entry {published.owner.head.seq}")
    if published.lacks:
        typer.echo(f"without a registry entry: the metadata lack {', '.join(published.lacks)}")


def verify_package(
    file: FileArgument, public_key: Annotated[str, typer.Option(help="The public key of the installation.")]
) -> None:
    """Verify a publication package without any database: signature, files, receipt, and noisy counts."""
    with naming_file(file), file.open("rb") as opened:
        manifest = check_package(opened, public_key)
    typer.echo(
        f"valid: {manifest['name']!r} in {manifest['account']!r}, {len(manifest['files'])} files, issued"
        f" {manifest['issued_at']} at head {manifest['head']['seq']}:{manifest['head']['hash']}"
    )
