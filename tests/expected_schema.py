"""Schema that the migrations create, written to where ``verify`` looks it up: run by ``make schema``."""

import contextlib
import json
import tempfile

from service.ledger.storage.database import open_database
from service.ledger.storage.migrate import migrate
from service.ledger.storage.schema import EXPECTED, present_schema
from tests.postgres_server import postgres_server


def write_expected() -> None:
    """Migrate one empty database of each kind, and write its schema."""
    schemas = {}
    with tempfile.TemporaryDirectory() as directory, postgres_server() as postgresql:
        for url in (f"sqlite:///{directory}/ledger.db", postgresql):
            with contextlib.closing(open_database(url)) as database:
                migrate(database)
                with database.read() as connection:
                    schemas[database.kind] = present_schema(connection)
    EXPECTED.write_text(json.dumps(schemas, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_expected()
