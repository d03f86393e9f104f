"""Counts of the partitions drawn: of each mechanism and repetition, and of each account."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from service.errors import Conflict

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_COUNTS = ("partitions_drawn", "partitions_undeclared")
_TABULATED = "EXISTS (SELECT 1 FROM tabulations t WHERE t.draw_id = d.id)"
_DRAWN = (
    "INSERT INTO partitions_drawn (release_id, mechanism, repetition, drawn)"
    " SELECT d.release_id, d.mechanism, d.repetition, count(*) FROM draws d"
    f" WHERE d.partition <> '' AND NOT {_TABULATED} GROUP BY d.release_id, d.mechanism, d.repetition"
)
_GROUPS = (  # a tabulation takes the branch of its own name too, which is no group
    "SELECT b.release_id, b.node, b.branch, count(*) AS number FROM branches_taken b"
    " JOIN tabulations t ON t.draw_id = b.draw_id JOIN draws d ON d.id = t.draw_id AND d.partition <> b.partition"
    " GROUP BY b.release_id, b.node, b.branch"
)
_COUNT = (
    "INSERT INTO partitions_drawn (release_id, mechanism, repetition, drawn) VALUES (:release, :mechanism, 0, :groups)"
    " ON CONFLICT (release_id, mechanism, repetition) DO UPDATE SET drawn = partitions_drawn.drawn + excluded.drawn"
)
_OF_ACCOUNT = (
    "SELECT coalesce(sum(p.drawn), 0) FROM partitions_drawn p JOIN releases r ON r.id = p.release_id"
    " WHERE r.account_id = accounts.id"
)

_BY_ENTRY_SQLITE = (
    "CREATE TRIGGER accounts_by_entry BEFORE UPDATE ON accounts WHEN NEW.head_seq <= OLD.head_seq"
    " BEGIN SELECT RAISE(ABORT, 'what the ledger has written stays as it is'); END"
)
_BY_ENTRY_POSTGRESQL = (
    "CREATE TRIGGER accounts_by_entry BEFORE UPDATE ON accounts FOR EACH ROW"
    " WHEN (NEW.head_seq <= OLD.head_seq) EXECUTE FUNCTION refuse_change()"
)


def upgrade() -> None:
    integer = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "partitions_drawn",
        sa.Column("release_id", sa.Text(), nullable=False),
        sa.Column("mechanism", sa.Text(), nullable=False),
        sa.Column("repetition", integer, nullable=False),
        sa.Column("most", integer, nullable=True),
        sa.Column("drawn", integer, nullable=False),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"]),
        sa.PrimaryKeyConstraint("release_id", "mechanism", "repetition"),
        sa.CheckConstraint("drawn > 0 AND (most IS NULL OR drawn <= most)", name="partitions_drawn_counts"),
    )
    for column in _COUNTS:
        op.add_column("accounts", sa.Column(column, integer, nullable=False, server_default=sa.text("0")))
    op.execute(_DRAWN)
    _count_groups()
    # An account's row changes with an entry of its journal only, but for this once.
    postgresql = op.get_bind().dialect.name == "postgresql"
    op.execute("DROP TRIGGER accounts_by_entry" + (" ON accounts" if postgresql else ""))
    # No plan of an older version declares partitions.
    op.execute(f"UPDATE accounts SET partitions_drawn = ({_OF_ACCOUNT}), partitions_undeclared = ({_OF_ACCOUNT})")
    op.execute(_BY_ENTRY_POSTGRESQL if postgresql else _BY_ENTRY_SQLITE)


def _count_groups() -> None:
    """The groups of tabulations, of each mechanism that drew them: all of a branch of the level's choice."""
    connection = op.get_bind()
    for release, node, branch, groups in connection.execute(sa.text(_GROUPS)).all():
        plan = connection.execute(sa.text("SELECT plan FROM releases WHERE id = :id"), {"id": release}).scalar_one()
        for mechanism in _mechanisms(json.loads(plan), f"{node}/parts/{branch}"):
            connection.execute(sa.text(_COUNT), {"release": release, "mechanism": mechanism, "groups": groups})


def _mechanisms(plan: Any, pointer: str) -> list[str]:
    """The names of the mechanisms below a node; one without a name is called by its path."""
    below = plan
    for step in pointer.split("/")[1:]:
        below = below[int(step)] if isinstance(below, list) else below[step]
    parts = [f"{pointer}/parts/{number}" for number in range(len(below.get("parts", ())))]
    parts += [f"{pointer}/part"] if "part" in below else []
    if parts:
        return [name for part in parts for name in _mechanisms(plan, part)]
    return [below.get("name") or pointer]


def downgrade() -> None:
    """Back to tables without counts.

    Raises:
        Conflict: some plan declares partitions, which the older version would draw beyond.
    """
    declared = sa.text("SELECT 1 FROM releases WHERE plan LIKE :declared LIMIT 1")
    if op.get_bind().execute(declared, {"declared": '%"partitions":%'}).first() is not None:
        raise Conflict("the older version does not keep to the partitions that plans declare")
    for column in _COUNTS:
        op.drop_column("accounts", column)
    op.drop_table("partitions_drawn")
