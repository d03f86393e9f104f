"""Webhooks, the messages for them with the log of their deliveries, and how far the journals were followed."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("mail", sa.Text(), nullable=True),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("accounts", sa.Text(), nullable=True),
        sa.Column("below", sa.Text(), nullable=True),
        sa.Column("active", _INTEGER, nullable=False),
        sa.Column("generation", _INTEGER, nullable=False),
        sa.Column("rotated_at", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("seal", sa.Text(), nullable=False),
        sa.CheckConstraint("(url IS NULL) <> (mail IS NULL)", name="webhooks_target"),
        sa.CheckConstraint("active IN (0, 1) AND generation > 0", name="webhooks_numbers"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("webhooks_in_order", "webhooks", ["created_at", "id"])
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("seal", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", _INTEGER, nullable=False),
        sa.Column("due_at", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="deliveries_state"),
        sa.CheckConstraint("(state = 'pending') = (due_at IS NOT NULL)", name="deliveries_due_at"),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("deliveries_of", "deliveries", ["webhook_id", "created_at", "id"])
    op.create_index("deliveries_made", "deliveries", ["created_at"])
    op.create_index("deliveries_due", "deliveries", ["due_at"], postgresql_where=_PENDING, sqlite_where=_PENDING)
    op.create_table(
        "delivery_tries",
        sa.Column("delivery_id", sa.Text(), nullable=False),
        sa.Column("number", _INTEGER, nullable=False),
        sa.Column("at", sa.Text(), nullable=False),
        sa.Column("milliseconds", _INTEGER, nullable=False),
        sa.Column("status", _INTEGER, nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["delivery_id"], ["deliveries.id"]),
        sa.PrimaryKeyConstraint("delivery_id", "number"),
    )
    op.create_table(
        "budgets_below",
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("account_id", _INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"]),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.PrimaryKeyConstraint("webhook_id", "account_id"),
    )
    op.create_table(
        "followed_journals",
        sa.Column("account_id", _INTEGER, autoincrement=False, nullable=False),
        sa.Column("seq", _INTEGER, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("account_id"),
    )


def downgrade() -> None:
    for table in ("followed_journals", "budgets_below", "delivery_tries", "deliveries", "webhooks"):
        op.drop_table(table)
