"""Runs migrations on the connection, and in the transaction, of ``service.ledger.storage.migrate``."""

from alembic import context

from service.ledger.storage.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite cannot alter a table: later migrations copy it
)
context.run_migrations()
