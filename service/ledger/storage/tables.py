"""The ledger's tables. ``migrations/`` builds the same; a test compares the two.

Exact numbers are text (they have any length); moments are text too (RFC 3339 in UTC with six
decimals and a ``Z``, so that they sort as strings and hash as they are stored). True counts have
no column here.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

LAST_ROWID = "last_rowid"
"""A table of SQLite alone, which triggers write and read: the last rowid before a row is inserted."""


class Base(DeclarativeBase):
    """All tables: text and bytes without lengths, and constraints with names that later migrations can use."""

    metadata = MetaData(
        naming_convention={
            "pk": "%(table_name)s_pkey",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        }
    )
    type_annotation_map = {  # noqa: RUF012
        str: Text,
        bytes: LargeBinary,
        int: BigInteger().with_variant(Integer(), "sqlite"),  # turns go to 10^12; SQLite's INTEGER has 64 bits
    }


class Installation(Base):
    """One row: which secret this database belongs to."""

    __tablename__ = "installation"
    id: Mapped[int] = mapped_column(primary_key=True)
    secret_fingerprint: Mapped[str]
    created_at: Mapped[str]


class OlderRows(Base):
    """A table that had rows without seals when the migration ran that looked for them: an older version's."""

    __tablename__ = "older_rows"
    table_name: Mapped[str] = mapped_column(primary_key=True)


class InstallationEntry(Base):
    """One entry of the installation's journal: what happened to it that belongs to no account."""

    __tablename__ = "installation_journal"
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    body: Mapped[str]  # RFC 8785 canonical JSON
    hash: Mapped[str]
    seal: Mapped[str]  # HMAC of number and hash with the installation's secret


class ApiKey(Base):
    """A bearer key; the token itself is never stored."""

    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]  # the principal
    role: Mapped[str]
    accounts: Mapped[str | None]  # JSON array of account names; null: all
    token_hash: Mapped[str] = mapped_column(unique=True)  # HMAC with the secret; SHA-256 where there is no seal
    created_at: Mapped[str]
    expires_at: Mapped[str | None]
    revoked_at: Mapped[str | None]
    created_by: Mapped[str | None]  # the principal who made it; null: the operator, at a start or by a command
    rotated_from: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))  # the key that it takes the place of
    last_used_at: Mapped[str | None]  # as `key_usage` has it: to the hour
    seal: Mapped[str | None]  # HMAC of all but the last use, with the secret; null: older, and not adopted
    __table_args__ = (
        CheckConstraint("role IN ('auditor', 'pipeline', 'steward')", name="api_keys_role"),
        # Those are an issuer's to give; an older version may have left some that are revoked.
        CheckConstraint("substr(name, 1, 5) <> 'oidc:' OR revoked_at IS NOT NULL", name="api_keys_name"),
        Index("api_keys_rotated", "rotated_from", unique=True),  # a key is rotated once
    )


class Account(Base):
    """A protected population, its cap, and the head of its journal."""

    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    unit: Mapped[str]
    neighbouring: Mapped[str]
    description: Mapped[str]
    budget: Mapped[str]  # JSON, exact numbers as strings
    admission: Mapped[str]  # JSON: the RDP orders with their weights, fixed at opening
    totals: Mapped[str]  # JSON: what admission compares with the cap; recomputed from the journal it is the same
    state: Mapped[str]
    created_at: Mapped[str]
    head_seq: Mapped[int]
    head_hash: Mapped[str]
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"))  # a trigger compares unit and relation
    approval_above: Mapped[str | None]  # the price above which a second steward must approve; null: none need
    next_expiry: Mapped[str | None]  # the least `expires_at` of its holds, so that a charge need not look for due ones
    releases: Mapped[int] = mapped_column(server_default=text("0"))  # committed and held, its descendants' included
    partitions_drawn: Mapped[int] = mapped_column(server_default=text("0"))  # of its own releases
    partitions_undeclared: Mapped[int] = mapped_column(server_default=text("0"))  # those whose plans declare none
    seal: Mapped[str | None]  # HMAC of all of it with the installation's secret; null: older, and not sealed yet
    spending_sum: Mapped[str | None]  # of its rows of spending, keyed and masked; null: older, not added up yet
    __table_args__ = (
        CheckConstraint("state IN ('open', 'closed')", name="accounts_state"),
        CheckConstraint("neighbouring IN ('add_remove', 'replace_one')", name="accounts_neighbouring"),
        CheckConstraint("parent_id < id", name="accounts_parent"),
        CheckConstraint("releases >= 0", name="accounts_releases"),
        Index("accounts_by_parent", "parent_id", "name"),
    )


class Release(Base):
    """An immutable plan that was charged. ``seq`` is that of the journal entry that charged it."""

    __tablename__ = "releases"
    id: Mapped[str] = mapped_column(primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    seq: Mapped[int]
    name: Mapped[str]
    plan: Mapped[str]  # JSON as stated, exact numbers as strings
    tags: Mapped[str]  # JSON array: the release's own
    delta: Mapped[str]
    state: Mapped[str]
    price: Mapped[str]  # JSON: what was added to the account's totals
    accountant: Mapped[str]  # version of the accountant that priced it
    created_at: Mapped[str]
    expires_at: Mapped[str | None]  # of a reservation, as it was made
    seal: Mapped[str | None]  # as `release_rows` has it, of all but price and accountant; null: older, not sealed yet
    __table_args__ = (
        UniqueConstraint("account_id", "seq"),
        CheckConstraint(
            "state IN ('proposed', 'reserved', 'committed', 'voided', 'expired')"
            " AND (expires_at IS NOT NULL OR state NOT IN ('reserved', 'expired'))",
            name="releases_state",
        ),
        Index(
            "releases_by_state",
            "account_id",
            "state",
            "seq",
            postgresql_where=text("state <> 'committed'"),
            sqlite_where=text("state <> 'committed'"),
        ),
    )


class Hold(Base):
    """What a proposed or reserved release holds of one account of its line; it goes when the release is settled."""

    __tablename__ = "holds"
    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    price: Mapped[str]  # JSON: what was added to this account's totals
    expires_at: Mapped[str | None]  # null: it does not expire by itself
    seal: Mapped[str | None]  # HMAC of all of it with the installation's secret; null: older, and not sealed yet
    __table_args__ = (Index("holds_due", "account_id", "expires_at", "release_id"),)


class ReleaseTag(Base):
    """The tags of a release and of the nodes of its plan, for listing by tag."""

    __tablename__ = "release_tags"
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)


class Spending(Base):
    """How often each distinct priced subplan occurs in an account and its descendants: balances come from this."""

    __tablename__ = "spending"
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    subplan: Mapped[str]  # JSON in normal form, with tags
    occurrences: Mapped[int]  # committed
    reserved: Mapped[int] = mapped_column(server_default=text("0"))  # held
    __table_args__ = (
        CheckConstraint(
            "occurrences >= 0 AND reserved >= 0 AND occurrences + reserved > 0",
            name="spending_counts",
        ),
    )


_CHANGES = text("kind IN ('change_proposed', 'budget_changed', 'account_closed', 'account_reopened')")


class Entry(Base):
    """One journal entry. ``body`` is what was hashed; the columns beside it only find it."""

    __tablename__ = "journal"
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    release_id: Mapped[str | None] = mapped_column(ForeignKey("releases.id"))
    body: Mapped[str]  # RFC 8785 canonical JSON
    hash: Mapped[str]
    __table_args__ = (
        Index(
            "journal_budgets",
            "account_id",
            "seq",
            postgresql_where=text("kind IN ('account_opened', 'budget_changed')"),
            sqlite_where=text("kind IN ('account_opened', 'budget_changed')"),
        ),
        Index("journal_changes", "account_id", "seq", postgresql_where=_CHANGES, sqlite_where=_CHANGES),
    )


class Description(Base):
    """What people say of an account, or of one of its releases, from a journal entry on until the next one."""

    __tablename__ = "descriptions"
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    release_id: Mapped[str | None] = mapped_column(ForeignKey("releases.id"))  # null: the account
    document: Mapped[str]  # RFC 8785 canonical JSON of all of it, as in the entry
    __table_args__ = (Index("descriptions_of", "account_id", "release_id", "seq"),)


class Draw(Base):
    """The noisy counts of one mechanism, partition and repetition of a release."""

    __tablename__ = "draws"
    id: Mapped[str] = mapped_column(primary_key=True)
    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id"))
    mechanism: Mapped[str]  # its name in the plan
    partition: Mapped[str]  # empty: the whole input
    repetition: Mapped[int]
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    seq: Mapped[int]  # of its journal entry
    size: Mapped[int]  # how many counts
    noisy: Mapped[bytes]  # as `count_codec` has it; empty once they were removed
    noisy_hash: Mapped[str]  # SHA-256 of the values as little-endian int64
    created_at: Mapped[str]
    noisy_removed_at: Mapped[str | None]
    seal: Mapped[str | None]  # as `draw_rows` has it, of all but the noisy counts; null: older, not sealed yet
    __table_args__ = (
        UniqueConstraint("release_id", "mechanism", "partition", "repetition"),
        Index("draws_by_account", "account_id", "seq"),
        Index(
            "draws_kept",
            "created_at",
            postgresql_where=text("noisy_removed_at IS NULL"),
            sqlite_where=text("noisy_removed_at IS NULL"),
        ),
        CheckConstraint("(noisy_removed_at IS NOT NULL) = (length(noisy) = 0)", name="draws_noisy"),
    )


class PartitionsDrawn(Base):
    """How many partitions one mechanism and repetition of a release was drawn for."""

    __tablename__ = "partitions_drawn"
    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    mechanism: Mapped[str] = mapped_column(primary_key=True)  # its name in the plan
    repetition: Mapped[int] = mapped_column(primary_key=True)
    most: Mapped[int | None]  # how many the plan declares; null: it declares none
    drawn: Mapped[int]
    seal: Mapped[str | None]  # HMAC of all of it with the installation's secret; null: older, and not sealed yet
    __table_args__ = (CheckConstraint("drawn > 0 AND (most IS NULL OR drawn <= most)", name="partitions_drawn_counts"),)


class Tabulation(Base):
    """What the values of a draw are where it is of many groups at once."""

    __tablename__ = "tabulations"
    draw_id: Mapped[str] = mapped_column(ForeignKey("draws.id"), primary_key=True)
    layout: Mapped[
        bytes
    ]  # as `tabulation_layout` has it: the groups with their details, and the rules that chose these


class BranchTaken(Base):
    """Which branch of a ``choice`` the first draw took, for one partition and turn; a tabulation's groups are some."""

    __tablename__ = "branches_taken"
    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)  # JSON pointer of the choice in the plan
    partition: Mapped[str] = mapped_column(primary_key=True)
    turn: Mapped[int] = mapped_column(primary_key=True)
    branch: Mapped[int]
    draw_id: Mapped[str] = mapped_column(ForeignKey("draws.id"))


class StoredAnswer(Base):
    """The first successful answer to a request with an Idempotency-Key, for replay."""

    __tablename__ = "stored_answers"
    principal: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_digest: Mapped[str]  # HMAC of method, path and body
    status: Mapped[int]
    body: Mapped[str | None]  # null where it is rendered from `draw_id`; beside `api_key_id`, without the token
    draw_id: Mapped[str | None] = mapped_column(ForeignKey("draws.id"))
    api_key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[str]
    seal: Mapped[str | None]  # HMAC of all of it with the installation's secret; null: no answer to give again


class Job(Base):
    """A computation that takes longer than a request may: its parameters and its result, and who works on it.

    Only simulations are jobs: nothing that is computed from true counts is stored.
    """

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    principal: Mapped[str]  # who asked
    parameters: Mapped[str]  # JSON
    state: Mapped[str]
    permille: Mapped[int]  # how much is done
    result: Mapped[str | None]  # JSON
    problem: Mapped[str | None]  # why it failed
    attempts: Mapped[int]  # how often it was started
    worker: Mapped[str | None]  # who started it last
    leased_until: Mapped[str | None]  # when others may take it from that worker
    created_at: Mapped[str]
    ended_at: Mapped[str | None]
    seal: Mapped[str | None]  # HMAC of a result and of what was asked, with the installation's secret
    __table_args__ = (
        CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="jobs_state"),
        Index("jobs_by_state", "state", "created_at"),
    )


class KnownCost(Base):
    """Figures of something large that were found once; what does not match its seal is found again."""

    __tablename__ = "known_costs"
    subject: Mapped[str] = mapped_column(primary_key=True)  # a release, a question about a balance, or a tabulation
    state: Mapped[str]  # what they depend on beside it: the versions that found them, the journal's head
    cost: Mapped[str]  # JSON
    seal: Mapped[str]  # by the installation's secret: whoever writes the database cannot make figures up
