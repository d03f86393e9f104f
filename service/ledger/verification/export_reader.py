"""The reader of exports: it checks every entry and every draw as verification does, line by line."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, BinaryIO

from service.errors import ServiceError
from service.ledger.accounts.lines import MAX_DEPTH
from service.ledger.draws import count_codec
from service.ledger.draws.partition_bounds import DeclaredNumbers
from service.ledger.draws.partitions import PartitionsPerMechanism
from service.ledger.draws.places import find_mechanism
from service.ledger.draws.retention import is_removal
from service.ledger.draws.tabulation_layout import Layout, checked_layout, tabulated
from service.ledger.installation.signing import BadSignature, check_signature
from service.ledger.journal.canonical_json import load_once
from service.ledger.journal.chains import UNREADABLE, BrokenChain
from service.ledger.journal.entries import AccountOpened, Drawn, ParsedEntry, Registration, read_members
from service.ledger.journal.entry_texts import read_text
from service.ledger.journal.journal import Head
from service.ledger.journal.ordered_rows import BadRow
from service.ledger.verification.approval_check import UNMET, ApprovalAudit
from service.ledger.verification.chain_check import Audit
from service.ledger.verification.exports import STATEMENT, VERSION
from service.ledger.verification.funding_check import FundingAudit
from service.ledger.verification.line_check import LineAudit
from service.ledger.verification.period_audit import PeriodAudit
from service.privacy.planning.levels import find_level

_DECODER = json.JSONDecoder()
_LONGEST = 1 << 31  # bytes of a line: a draw of hundreds of millions of counts


class BadExport(ServiceError):
    """A file that is no export, is incomplete, or is not as it was signed."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line


@dataclass(frozen=True, slots=True)
class DrawnCounts:
    """The stored bytes of a draw, None once they were removed; a tabulation has a layout too."""

    noisy: bytes
    noisy_removed_at: str | None = None
    packed: bytes | None = None
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """An entry that was read and checked.

    Attributes:
        audit: of its account, up to it.
        drawn: its draw, if it is the entry of one.
        is_last: whether it is the head of its account.
    """

    audit: Audit
    entry: ParsedEntry
    body: str
    hash: str
    drawn: DrawnCounts | None
    is_last: bool


@dataclass(slots=True)
class _Expected:
    """An account that the first line names; its audit is discarded when its head is reached."""

    head: Head
    audit: Audit | None
    opening: AccountOpened | None = None
    depth: int = 1
    own: int = 0
    releases: int = 0


class Reader:
    """A reader of an export, line by line; ``line`` is the number of the last one.

    Args:
        file: binary, at the start of the export; one that cannot be searched is read once only.
        public_key: of the ledger that signed the export; None: the one that the first line names.
    """

    def __init__(self, file: BinaryIO, public_key: str | None) -> None:
        self.line = 0
        self.public_key = public_key  # None: that of the first line, once it was read
        self._file = file
        self._accounts: dict[str, _Expected] = {}
        self._plans: dict[str, str] = {}  # the texts of plans with choices or declared partitions, each once
        self._planned: dict[str, str] = {}  # releases, with the text of their plan among these
        self._read_plan = lru_cache(maxsize=1)(read_text)  # draws of one plan mostly come together
        self._numbers = DeclaredNumbers()
        self._periods = PeriodAudit()
        self._funding = FundingAudit()
        self._lines = LineAudit()
        self._approvals = ApprovalAudit()

    def entries(self) -> Iterator[CheckedEntry]:
        """Yield the entries, each checked as ``verify`` does; the file is complete only if nothing is raised.

        Raises:
            BadExport: a line is wrong; the text says which one and how.
        """
        self._read_heads()
        while (document := self._next()) is not None:
            try:
                entered = self._entry(document)
            except BadExport:
                raise
            except BadRow as bad:
                raise BadExport(self.line, f"entry {bad.seq}: {bad}") from None
            except UNREADABLE as error:
                reason = (
                    str(error) if isinstance(error, BrokenChain) else "the entry's content is not valid for its kind"
                )
                raise BadExport(self.line, reason) from None
            yield entered
        for name, expected in self._accounts.items():
            if expected.audit is not None:
                raise BadExport(self.line + 1, f"the file ends before the head of {name!r}")
        self._check_families()

    @property
    def heads(self) -> dict[str, Head]:
        """Return the accounts that the first line names, with their heads; none until ``entries`` has begun."""
        return {name: expected.head for name, expected in self._accounts.items()}

    def _next(self) -> dict[str, Any] | None:
        text = self._file.readline(_LONGEST)
        if not text:
            return None
        self.line += 1
        if not text.endswith(b"\n"):
            raise BadExport(self.line, "the line is cut off, or too long")
        try:
            document = load_once(text)
        except (ValueError, RecursionError):
            raise BadExport(self.line, "expected a JSON object, with each name once") from None
        if not isinstance(document, dict):
            raise BadExport(self.line, "expected a JSON object")
        return document

    def _read_heads(self) -> None:
        document = self._next()
        if document is None:
            raise BadExport(1, "the file is empty")
        try:
            check_signature(document, STATEMENT, self.public_key)
            heads = {account["account"]: Head(account["seq"], account["hash"]) for account in document["accounts"]}
        except BadSignature as bad:
            raise BadExport(1, str(bad)) from None
        except (KeyError, TypeError):
            raise BadExport(1, "expected the heads of accounts") from None
        self.public_key = document["public_key"]
        if document.get("version") != VERSION:
            raise BadExport(1, f"expected version {VERSION}")
        repriced = self._find_repriced()
        self._accounts = {name: _Expected(head, Audit(name, None, repriced)) for name, head in heads.items()}

    def _find_repriced(self) -> frozenset[str | None] | None:
        """Look ahead for the releases that are priced again; return None if the file can be read only once.

        The result only selects the prices to keep: an entry that is not found here is refused where it comes.
        """
        if not self._file.seekable():
            return None
        found, here = set[str | None](), self._file.tell()
        for line in iter(partial(self._file.readline, _LONGEST), b""):
            if b"repriced" in line:
                with suppress(*UNREADABLE):
                    around = read_members(json.loads(json.loads(line)["entry"]))
                    found.add(around.release)
        self._file.seek(here)
        return frozenset(found)

    def _entry(self, document: dict[str, Any]) -> CheckedEntry:
        body, digest = document.get("entry"), document.get("hash")
        if document.keys() != {"entry", "hash"} or not (isinstance(body, str) and isinstance(digest, str)):
            raise BrokenChain("expected an entry and its hash")
        expected = self._accounts.get(_account_of(body))
        if expected is None:
            raise BrokenChain("the entry belongs to no account that the first line names")
        if expected.audit is None:
            raise BrokenChain("the entry comes after its account's head")
        audit = expected.audit
        entry = audit.check_text(body, digest)
        drawn = None
        self._lines.take(audit.chain.name, entry)
        if isinstance(entry.content, Registration):
            origin = entry.content.origin
            if origin is not None and not self._funding.charges(origin.account, audit.chain.name):
                raise BrokenChain("the release is not of an account whose releases charge this one")
            self._periods.check_release(audit.chain.periods, entry.release_id, entry.content)
        match entry.content:
            case AccountOpened() as opening:
                self._check_parent(expected, opening)
                self._periods.open(audit.chain.name, opening)
                self._funding.open(audit.chain.name, opening.parent, allotted=opening.funding is not None)
            case Registration(plan=plan) if '"partitions"' in plan or '"choice"' in plan:
                self._planned[entry.release_id] = self._plans.setdefault(plan, plan)
            case Drawn() as content:
                drawn = self._draw(content, entry.time)
                if entry.release in self._planned:
                    self._hold_to_plan(audit, entry, content, drawn)
        is_last = audit.chain.head.seq >= expected.head.seq
        if is_last:
            if audit.chain.head != expected.head:
                raise BrokenChain("the entry is not the head that was signed")
            audit.check_end()
            self._funding.end(audit.chain)
            self._approvals.end(audit.chain, audit.approvals)
            expected.audit, expected.own, expected.releases = None, audit.chain.own_releases, audit.chain.releases
        return CheckedEntry(audit, entry, body, digest, drawn, is_last)

    def _check_parent(self, expected: _Expected, opening: AccountOpened) -> None:
        expected.opening = opening
        if opening.parent is None:
            return
        parent = self._accounts.get(opening.parent)
        if parent is None or parent.opening is None:
            raise BrokenChain("the account's parent is not opened before it")
        expected.depth = parent.depth + 1
        above = parent.opening
        same = (above.unit, above.neighbouring) == (opening.unit, opening.neighbouring)
        if not same or expected.depth > MAX_DEPTH:
            raise BrokenChain("the account cannot be under its parent")

    def _draw(self, content: Drawn, drawn_at: str) -> DrawnCounts:
        """Read the line after the entry of a draw: its stored bytes."""
        document = self._next()
        if document is None:
            raise BadExport(self.line + 1, "the file ends before the noisy counts of a draw")
        removed = document.get("noisy_removed_at")
        fields = {"draw", "noisy"} | ({"layout"} if content.layout_hash is not None else set())
        fields |= set() if removed is None else {"noisy_removed_at"}
        if document.keys() != fields or document["draw"] != content.draw:
            raise BrokenChain("expected the noisy counts of the draw")
        if removed is not None and (document["noisy"] is not None or not is_removal(removed, drawn_at)):
            raise BrokenChain("expected no noisy counts, and when they were removed")
        try:
            noisy = b"" if removed is not None else base64.b64decode(document["noisy"], validate=True)
            packed = base64.b64decode(document["layout"], validate=True) if "layout" in fields else None
        except (TypeError, ValueError):
            raise BrokenChain("expected the noisy counts of the draw") from None
        if removed is None and not count_codec.is_pack_of(noisy, content.size, content.noisy_hash):
            raise BrokenChain("the noisy counts are not those of the draw")
        if packed is None or content.layout_hash is None:
            return DrawnCounts(noisy, removed)
        try:
            layout = checked_layout(packed, content.layout_hash, content.level, content.groups)
        except ValueError:
            raise BrokenChain("the groups are not those of the tabulation") from None
        return DrawnCounts(noisy, removed, packed, layout)

    def _hold_to_plan(self, audit: Audit, entry: ParsedEntry, content: Drawn, drawn: DrawnCounts) -> None:
        """Check a draw against its release's plan: the branches of choices, and the declared numbers of partitions."""
        release = entry.release_id
        text = self._planned[release]
        plan = self._read_plan(text)
        taken: PartitionsPerMechanism = ()
        if '"choice"' in text:
            audit.draws.take_branches(entry.seq, release, content, plan)
        if drawn.layout is not None:
            level = find_level(plan, drawn.layout.level)
            if level is None:
                raise BrokenChain("the release does not have the level of the tabulation")
            audit.draws.take_groups(entry.seq, release, content.draw, level, drawn.layout)
            taken = [(mechanism, len(groups)) for mechanism, groups in tabulated(level, drawn.layout)]
        elif content.partition:
            taken = [(find_mechanism(plan, content.mechanism, ""), 1)]
        self._numbers.take(release, plan, content.repetition, taken)

    def _check_families(self) -> None:
        """Require that the charges of an account are those registered in it and in the accounts under it."""
        below: Counter[str] = Counter()
        for name, parent in self._shared():
            below[parent] += self._accounts[name].releases
        for name, expected in self._accounts.items():
            if expected.releases != expected.own + below[name]:
                raise BadExport(self.line, f"the releases of {name!r} are not those of it and the accounts under it")
        for name in self._lines.unequal(self._shared()):
            raise BadExport(
                self.line, f"the entries about releases of {name!r} are not those of it and the accounts under it"
            )
        for name in self._approvals.unmet():
            raise BadExport(self.line, f"{UNMET}, in {name!r}")
        for fault in self._funding.faults():
            raise BadExport(self.line, fault)

    def _shared(self) -> Iterator[tuple[str, str]]:
        """Yield the accounts that charge the one above them for each release, with the name of that account."""
        for name, expected in self._accounts.items():
            opening = expected.opening
            if opening is not None and opening.parent is not None and opening.funding is None:
                yield name, opening.parent


def _account_of(body: str) -> str:
    """Return the account that an entry names, which its canonical form begins with."""
    start = '{"account":'
    try:
        name, _ = _DECODER.raw_decode(body, len(start)) if body.startswith(start) else ("", 0)
    except (ValueError, RecursionError):
        return ""
    return name if isinstance(name, str) else ""
