"""The ledger's tables; a test compares them with those that ``migrations/`` creates.

Exact numbers are text, because they have any length. Moments are text too (RFC 3339 in UTC with six decimals and a
``Z``), so they sort as strings and hash as they are stored. True counts have no column.
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


class Base(DeclarativeBase):
    """The base of all tables: text and bytes without lengths, and constraints with names for later migrations."""

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
    """The one row that says which secret this database belongs to."""

    __tablename__ = "installation"
    id: Mapped[int] = mapped_column(primary_key=True)
    secret_fingerprint: Mapped[str]
    created_at: Mapped[str]


class OlderRows(Base):
    """A table that had rows without seals, of an older version, when a migration looked for them."""

    __tablename__ = "older_rows"
    table_name: Mapped[str] = mapped_column(primary_key=True)


class InstallationEntry(Base):
    """An entry of the installation's journal: an event that belongs to no account."""

    __tablename__ = "installation_journal"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012
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
    created_by: Mapped[str | None]  # the principal that made it; null: the operator, at a start or by a command
    rotated_from: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))  # the key that it replaces
    last_used_at: Mapped[str | None]  # to the hour, as in `key_usage`
    seal: Mapped[str | None]  # HMAC of all but the last use, with the secret; null: older, and not adopted
    __table_args__ = (
        CheckConstraint("role IN ('auditor', 'pipeline', 'approver', 'steward')", name="api_keys_role"),
        # These names belong to an identity provider; an older version may have left revoked keys with such names.
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
    totals: Mapped[str]  # JSON: the totals that admission compares with the cap; the journal gives the same
    state: Mapped[str]
    created_at: Mapped[str]
    head_seq: Mapped[int]
    head_hash: Mapped[str]
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("accounts.id"))  # a trigger compares unit and relation
    approval_above: Mapped[str | None]  # the price above which other persons must approve; null: none need
    approvers: Mapped[str | None]  # JSON: who must approve, as in `approvers`; null: one other person, of any name
    next_expiry: Mapped[str | None]  # the least `expires_at` of its holds: a charge need not look for due ones
    releases: Mapped[int] = mapped_column(server_default=text("0"))  # committed and held, with those of its descendants
    partitions_drawn: Mapped[int] = mapped_column(server_default=text("0"))  # of its own releases
    partitions_undeclared: Mapped[int] = mapped_column(server_default=text("0"))  # those whose plans declare no number
    seal: Mapped[str | None]  # HMAC of the whole row with the installation's secret; null: older, and not sealed yet
    spending_sum: Mapped[str | None]  # keyed and masked, of its rows of spending; null: older, not added up yet
    caps: Mapped[str | None]  # JSON: its caps on tags, in the order of the tags; null: none
    cap_totals: Mapped[str | None]  # JSON: the totals that admission compares with each cap, by tag; null: no caps
    periods: Mapped[str | None]  # JSON: calendar and participation, fixed at opening; null: it has none
    period_state: Mapped[str | None]  # JSON: as in `window_state`; null: it has no periods
    funding: Mapped[str | None]  # `allotted`: its parent was charged with its whole cap; null: it shares the parent's
    allotted: Mapped[str | None]  # JSON: what it allots to accounts under it, as in `allotments`; null: nothing ever
    __table_args__ = (
        CheckConstraint("state IN ('open', 'closed')", name="accounts_state"),
        CheckConstraint("neighbouring IN ('add_remove', 'replace_one')", name="accounts_neighbouring"),
        CheckConstraint("parent_id < id", name="accounts_parent"),
        CheckConstraint("releases >= 0", name="accounts_releases"),
        Index("accounts_by_parent", "parent_id", "name"),
        {"sqlite_with_rowid": False},  # `INSERT OR REPLACE` could take one that no trigger saw
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
    price: Mapped[str]  # JSON: the amount added to the account's totals
    accountant: Mapped[str]  # version of the accountant that priced it
    created_at: Mapped[str]
    expires_at: Mapped[str | None]  # of a reservation, as it was made
    seal: Mapped[str | None]  # as in `release_rows`: of all but price and accountant; null: older, not sealed yet
    periods: Mapped[str | None]  # JSON: those that it reads, in its account's calendar; null: the account has none
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
    """A proposed or reserved release's hold on one account of its line, deleted when the release is settled."""

    __tablename__ = "holds"
    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    price: Mapped[str]  # JSON: the amount added to this account's totals
    expires_at: Mapped[str | None]  # null: it does not expire by itself
    seal: Mapped[str | None]  # HMAC of the whole row with the installation's secret; null: older, and not sealed yet
    caps: Mapped[str | None]  # JSON: the amount added to the totals of each cap, by tag; null: none
    periods: Mapped[str | None]  # JSON: those that it is charged to, in this account's calendar; null: it has none
    __table_args__ = (Index("holds_due", "account_id", "expires_at", "release_id"),)


class WindowTotals(Base):
    """The totals of the releases that touch one window of an account with periods, but for those to all periods."""

    __tablename__ = "window_totals"
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    committed: Mapped[str]  # JSON, as `accounts.totals`
    held: Mapped[str]
    releases: Mapped[int]  # committed and held
    seq: Mapped[int]  # of the last entry that changed it
    seal: Mapped[str]  # HMAC of the whole row with the installation's secret
    __table_args__ = (CheckConstraint("releases >= 0 AND seq > 0", name="window_totals_counts"),)


class Allotment(Base):
    """The charge of an allotted account to one above it, in place of that account's releases."""

    __tablename__ = "allotments"
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)  # the charged account
    child_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)  # the allotted account
    plan: Mapped[str]  # canonical JSON: a declared mechanism with the guarantee that was allotted
    price: Mapped[str]  # JSON: the amount added to the charged account's totals
    caps: Mapped[str | None]  # JSON: the amount added to the totals of each cap, by tag; null: none
    seq: Mapped[int]  # of the charged account's last entry about it
    seal: Mapped[str]  # HMAC of the whole row with the installation's secret
    __table_args__ = (CheckConstraint("seq > 0", name="allotments_seq"),)


class ReleaseTag(Base):
    """The tags of a release and of its plan's nodes, for listing by tag."""

    __tablename__ = "release_tags"
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)


class Spending(Base):
    """The number of occurrences of each distinct priced subplan in an account and its descendants.

    Balances are computed from these rows.
    """

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


OF_CHANGES = text(
    "kind IN ('change_proposed', 'budget_changed', 'account_closed', 'account_reopened', 'caps_changed',"
    " 'change_rejected', 'change_approved', 'approvers_changed')"
)
"""The entries that propose or approve a change of an account, or end a proposal, worded as in the partial index."""

OF_APPROVALS = text("kind = 'approved'")
"""The entries that approve a release, worded as in the partial index."""


class Entry(Base):
    """A journal entry. ``body`` is the text that was hashed; the other columns only serve to find it."""

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
        Index("journal_changes", "account_id", "seq", postgresql_where=OF_CHANGES, sqlite_where=OF_CHANGES),
        Index(
            "journal_approvals",
            "release_id",
            "account_id",
            "seq",
            postgresql_where=OF_APPROVALS,
            sqlite_where=OF_APPROVALS,
        ),
    )


class Description(Base):
    """The metadata of an account, or of one of its releases, from one journal entry until the next such entry."""

    __tablename__ = "descriptions"
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    release_id: Mapped[str | None] = mapped_column(ForeignKey("releases.id"))  # null: the account
    document: Mapped[str]  # RFC 8785 canonical JSON of all metadata, as in the entry
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
    size: Mapped[int]  # the number of counts
    noisy: Mapped[bytes]  # in the format of `count_codec`; empty once they were removed
    noisy_hash: Mapped[str]  # SHA-256 of the values as little-endian int64
    created_at: Mapped[str]
    noisy_removed_at: Mapped[str | None]
    seal: Mapped[str | None]  # as in `draw_rows`: of all but the noisy counts; null: older, not sealed yet
    __table_args__ = (
        UniqueConstraint("release_id", "mechanism", "partition", "repetition"),
        Index("draws_by_account", "account_id", "seq"),
        Index("draws_by_turn", text("(release_id || mechanism)"), "repetition"),
        Index(
            "draws_kept",
            "created_at",
            postgresql_where=text("noisy_removed_at IS NULL"),
            sqlite_where=text("noisy_removed_at IS NULL"),
        ),
        CheckConstraint("(noisy_removed_at IS NOT NULL) = (length(noisy) = 0)", name="draws_noisy"),
    )


class PartitionsDrawn(Base):
    """The number of partitions that one mechanism and repetition of a release was drawn for."""

    __tablename__ = "partitions_drawn"
    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    mechanism: Mapped[str] = mapped_column(primary_key=True)  # its name in the plan
    repetition: Mapped[int] = mapped_column(primary_key=True)
    most: Mapped[int | None]  # the number that the plan declares; null: it declares none
    drawn: Mapped[int]
    seal: Mapped[str | None]  # HMAC of the whole row with the installation's secret; null: older, and not sealed yet
    __table_args__ = (CheckConstraint("drawn > 0 AND (most IS NULL OR drawn <= most)", name="partitions_drawn_counts"),)


class Tabulation(Base):
    """The layout of a draw's values, for a draw of many groups at once."""

    __tablename__ = "tabulations"
    draw_id: Mapped[str] = mapped_column(ForeignKey("draws.id"), primary_key=True)
    layout: Mapped[
        bytes
    ]  # in the format of `tabulation_layout`: the groups with their details, and the rules that chose these


class BranchTaken(Base):
    """The branch of a ``choice`` that the first draw took, for one partition and turn, or for a tabulation's group."""

    __tablename__ = "branches_taken"
    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)  # JSON pointer of the choice in the plan
    partition: Mapped[str] = mapped_column(primary_key=True)
    turn: Mapped[int] = mapped_column(primary_key=True)
    branch: Mapped[int]
    draw_id: Mapped[str] = mapped_column(ForeignKey("draws.id"))
    # Of an expression, so that no planner takes it where the primary key finds one row of many groups.
    __table_args__ = (Index("branches_taken_by_branch", text("(release_id || node)"), "turn", "branch"),)


class StoredAnswer(Base):
    """The first successful answer to a request with an Idempotency-Key, for replay."""

    __tablename__ = "stored_answers"
    principal: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_digest: Mapped[str]  # HMAC of method, path and body
    status: Mapped[int]
    body: Mapped[str | None]  # null if rendered from `draw_id`; without the token beside `api_key_id`
    draw_id: Mapped[str | None] = mapped_column(ForeignKey("draws.id"))
    api_key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id"))
    created_at: Mapped[str]
    seal: Mapped[str | None]  # HMAC of the whole row with the installation's secret; null: no answer to replay


class Job(Base):
    """A computation that takes longer than a request may: its parameters, its result and its worker.

    Only simulations are jobs: nothing that is computed from true counts is stored.
    """

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    principal: Mapped[str]  # the principal that submitted it
    parameters: Mapped[str]  # JSON
    state: Mapped[str]
    permille: Mapped[int]  # the part that is done, in thousandths
    result: Mapped[str | None]  # JSON
    problem: Mapped[str | None]  # the reason of a failure
    attempts: Mapped[int]  # the number of starts
    worker: Mapped[str | None]  # the worker that started it last
    leased_until: Mapped[str | None]  # the moment from which other workers may take it
    created_at: Mapped[str]
    ended_at: Mapped[str | None]
    seal: Mapped[str | None]  # HMAC of the result and the parameters, with the installation's secret
    __table_args__ = (
        CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="jobs_state"),
        Index("jobs_by_state", "state", "created_at"),
    )


class Scenario(Base):
    """The inputs of a plan, as the form of a planner stated them, saved under a name; without results.

    Nothing of the ledger's promise depends on it, so the row is neither sealed nor journalled.
    """

    __tablename__ = "scenarios"
    id: Mapped[str] = mapped_column(primary_key=True)
    principal: Mapped[str]  # the principal that made it
    name: Mapped[str]
    account: Mapped[str | None]  # the account's name; null: planned without one
    kind: Mapped[str]
    mechanism: Mapped[str]
    inputs: Mapped[str]  # JSON: everything else
    created_at: Mapped[str]
    changed_at: Mapped[str]
    __table_args__ = (UniqueConstraint("principal", "name"), Index("scenarios_by_time", "created_at", "id"))


class KnownCost(Base):
    """Stored figures of something large; figures that do not match their seal are computed again."""

    __tablename__ = "known_costs"
    subject: Mapped[str] = mapped_column(primary_key=True)  # a release, a question about a balance, or a tabulation
    state: Mapped[str]  # the other things that they depend on: the versions that computed them, the journal's head
    cost: Mapped[str]  # JSON
    seal: Mapped[str]  # by the installation's secret, without which the database's writers cannot invent figures


class Webhook(Base):
    """A target of notifications: an address that messages are posted to, or recipients of mail."""

    __tablename__ = "webhooks"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    url: Mapped[str | None]
    mail: Mapped[str | None]  # JSON array of addresses
    events: Mapped[str]  # JSON array of the types of messages
    accounts: Mapped[str | None]  # JSON array of account names; null: all, and the installation
    below: Mapped[str | None]  # an exact share of a budget; null: no such message is asked for
    active: Mapped[int]  # 0: no messages are made
    generation: Mapped[int]  # of its signing secret, which is derived and never stored
    rotated_at: Mapped[str | None]  # the moment at which this generation began; null: the first one
    created_at: Mapped[str]
    created_by: Mapped[str]
    seal: Mapped[str]  # HMAC of the whole row with the installation's secret
    __table_args__ = (
        CheckConstraint("(url IS NULL) <> (mail IS NULL)", name="webhooks_target"),
        CheckConstraint("active IN (0, 1) AND generation > 0", name="webhooks_numbers"),
        Index("webhooks_in_order", "created_at", "id"),
    )


class Delivery(Base):
    """A message to one webhook. What it says never changes; the last columns say how far its delivery is."""

    __tablename__ = "deliveries"
    id: Mapped[str] = mapped_column(primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"))
    type: Mapped[str]
    account: Mapped[str | None]  # the name of the account that it is about; null: none
    payload: Mapped[str]  # JSON, as it is sent and signed
    created_at: Mapped[str]
    seal: Mapped[str]  # HMAC of the columns above with the installation's secret
    state: Mapped[str]
    tries: Mapped[int]
    due_at: Mapped[str | None]  # the moment of the next try; null: there is none
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="deliveries_state"),
        CheckConstraint("(state = 'pending') = (due_at IS NOT NULL)", name="deliveries_due_at"),
        Index("deliveries_of", "webhook_id", "created_at", "id"),
        Index("deliveries_made", "created_at"),
        Index(
            "deliveries_due",
            "due_at",
            postgresql_where=text("state = 'pending'"),
            sqlite_where=text("state = 'pending'"),
        ),
    )


class DeliveryTry(Base):
    """One try of a delivery, for the log."""

    __tablename__ = "delivery_tries"
    delivery_id: Mapped[str] = mapped_column(ForeignKey("deliveries.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)  # from 1
    at: Mapped[str]
    milliseconds: Mapped[int]
    status: Mapped[int | None]  # of the answer; null: there was none
    reason: Mapped[str | None]  # of the failure, in words; null: it was delivered
    answer: Mapped[str | None]  # the beginning of the answer's body


class BudgetBelow(Base):
    """An account whose budget is below a webhook's share, so that its message is sent once."""

    __tablename__ = "budgets_below"
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id"), primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"), primary_key=True)


class FollowedJournal(Base):
    """The last entry of a journal of which messages were made; 0 is the installation's journal."""

    __tablename__ = "followed_journals"
    account_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    seq: Mapped[int]
    hash: Mapped[str]
