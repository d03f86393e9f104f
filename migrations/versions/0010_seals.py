"""Keys, stored answers and jobs' results are sealed with the installation's secret."""

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_SEALED = ("api_keys", "stored_answers", "jobs")


def upgrade() -> None:
    """Add the columns; what they hold takes the secret, and is written at the next start."""
    for table in _SEALED:
        op.add_column(table, sa.Column("seal", sa.Text(), nullable=True))


def downgrade() -> None:
    """Back to keys that are found by the SHA-256 of their tokens.

    Raises:
        Conflict: there are others, which the older version would refuse.
    """
    if op.get_bind().exec_driver_sql("SELECT 1 FROM api_keys WHERE seal IS NOT NULL LIMIT 1").first() is not None:
        raise Conflict("the older version's tables cannot hold keys that are sealed with the secret")
    for table in _SEALED:
        op.execute(f"ALTER TABLE {table} DROP COLUMN seal")
