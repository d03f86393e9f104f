"""Keys: who made them, whose place they take, when they were last used; names that no valid key may have."""

from alembic import op

from service.errors import StartupRefused

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# SQLite adds a column with the constraints that it comes with, but no constraint to a table; a column's may look at
# others.
_COLUMNS = (
    "created_by TEXT CONSTRAINT api_keys_name CHECK (substr(name, 1, 5) <> 'oidc:' OR revoked_at IS NOT NULL)",
    "rotated_from TEXT CONSTRAINT api_keys_rotated_from_fkey REFERENCES api_keys (id)",
    "last_used_at TEXT",
)


def upgrade() -> None:
    """Add the columns.

    Raises:
        StartupRefused: a key acts under a name that is an issuer's to give from now on.
    """
    named = "SELECT count(*) FROM api_keys WHERE substr(name, 1, 5) = 'oidc:' AND revoked_at IS NULL"
    if number := op.get_bind().exec_driver_sql(named).scalar_one():
        raise StartupRefused(
            f"expected no valid keys whose names begin with oidc:, which an issuer gives now; got {number}:"
            " revoke them with the version of the service before this one, which can make others in their place"
        )
    for column in _COLUMNS:
        op.execute(f"ALTER TABLE api_keys ADD COLUMN {column}")
    op.create_index("api_keys_rotated", "api_keys", ["rotated_from"], unique=True)


def downgrade() -> None:
    op.drop_index("api_keys_rotated", "api_keys")
    if op.get_bind().dialect.name == "postgresql":  # SQLite's goes with the column that it came with
        op.execute("ALTER TABLE api_keys DROP CONSTRAINT api_keys_name")
    for column in ("last_used_at", "rotated_from", "created_by"):
        op.execute(f"ALTER TABLE api_keys DROP COLUMN {column}")
