"""The check of a chain, entry by entry: hashes, canonical form, content, and price.

It needs no database, so the same code checks a journal that another party keeps.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from typing import Any

from service.ledger.access.key_lives import KeyLives
from service.ledger.accounts.allotments import amount_in, reference_to, text_of
from service.ledger.accounts.caps import price_under
from service.ledger.journal import entries, entry_texts
from service.ledger.journal.account_state import AccountState, Charge, HeldRelease, ProposedChange, ends_by_itself
from service.ledger.journal.chains import MISFILED, UNREADABLE, BrokenChain, check_link, read_body, read_entry
from service.ledger.journal.entries import (
    Allotted,
    Approved,
    CapsChanged,
    ChangeApproved,
    Decided,
    Drawn,
    Expired,
    ParsedEntry,
    PriceChanged,
    Proposed,
    Registration,
    Voided,
    read_members,
)
from service.ledger.journal.entry_texts import PriceKey, SpendingKey
from service.ledger.journal.journal import Actor, Head, JournalEntry
from service.ledger.verification.approval_check import UNAPPROVED, ApprovalCheck, Before
from service.ledger.verification.cap_check import CapCheck
from service.ledger.verification.draw_check import DrawOverlaps
from service.privacy.accounting.pricing import COMPARABLE, Price, price
from service.privacy.accounting.privacy_filter import spent_alone
from service.privacy.accounting.totals import may_be_charge_by
from service.privacy.mechanisms.declared import Declared, declared_in
from service.privacy.numerics.keyed import KeptResults
from service.privacy.plans.notation import check_relation

_REMEMBERED = 4096  # distinct plans with their prices
_long_prices = KeptResults[Price](1024)
"""The present accountant's prices of long plans, so that a journal that is verified again is not priced again."""


_BY_ONE = "was proposed and approved by one principal"
_BY_KEYS_OF_ONE = "was proposed and approved with keys that one principal could know"
_TWICE_BY_ONE = "was approved twice, with keys that one principal could know"


def _check_second(
    entry: ParsedEntry, decided: Decided, proposed: ProposedChange | None, lives: KeyLives | None
) -> None:
    """Require that a change which states another person's proposal is the proposed one."""
    if proposed is None or (proposed.seq, proposed.change) != (decided.proposal, decided.proposed().change()):
        raise BrokenChain("the change is not the one that was proposed")
    _check_persons("the change", proposed.by, proposed.approved, entry, lives)


def _check_persons(
    what: str, proposer: Actor, approved: Sequence[Actor], entry: ParsedEntry, lives: KeyLives | None
) -> None:
    """Check an approval for two-person control, by names and, if keys are known, by the principals that had them.

    Args:
        approved: those that approved it before; the approvals of one name count once, so they are of one person.
    """
    if proposer.name == entry.by.name:
        raise BrokenChain(f"{what} {_BY_ONE}")
    if lives is not None and lives.is_one_person(proposer, entry.by, entry.time):
        raise BrokenChain(f"{what} {_BY_KEYS_OF_ONE}")
    for other in approved:
        if other.name != entry.by.name and lives is not None and lives.is_one_person(other, entry.by, entry.time):
            raise BrokenChain(f"{what} {_TWICE_BY_ONE}")


@contextmanager
def _readable() -> Iterator[None]:
    """Say of content that cannot be read in the block that it is not valid.

    Raises:
        BrokenChain: there is such content.
    """
    try:
        yield
    except BrokenChain:  # which has a reason already
        raise
    except UNREADABLE:
        raise BrokenChain("the entry's price or plan is not valid") from None


def _check_end(held: HeldRelease | None, at: str) -> None:
    """Require that a hold had ended by itself at a moment."""
    with _readable():
        ends = None if held is None else ends_by_itself(held)
    if ends is None or ends > at:
        raise BrokenChain("the reservation had not ended")


def _allotment_like(leaf: Declared, child: str) -> Declared:
    """Return the mechanism of an allotment with the figures of another mechanism."""
    amount_in(leaf)
    return Declared(guarantee=leaf.guarantee, reference=reference_to(child))


class Audit:
    """The audit of one account's chain, from its first entry on.

    Args:
        lives: of the keys that entries name; None where the installation's journal is unknown.
        repriced: the releases that the chain prices again, as looked up beforehand; None where they are unknown. The
            charged prices and the plans are kept only for these: a release that is missing here fails where it is
            priced again.
    """

    def __init__(
        self, account: str, lives: KeyLives | None = None, repriced: Collection[str | None] | None = None
    ) -> None:
        self.chain, self._lives, self._repriced = AccountState(account), lives, repriced
        self.draws = DrawOverlaps()
        self._charged: dict[str, Charge] = {}  # by release
        self._plans: dict[str, str] = {}  # equal ones are kept once
        self.caps = CapCheck(self.chain)
        self.approvals = ApprovalCheck(self.chain)
        self._carried = lru_cache(maxsize=_REMEMBERED)(self._stated_tags)
        self._known = lru_cache(maxsize=_REMEMBERED)(self._is_right)

    def take(self, entry: JournalEntry) -> ParsedEntry:
        """Check the next entry, and return its content.

        Raises:
            BrokenChain: it is invalid here; the text says how.
        """
        return self._take(read_entry(self.chain.name, self.chain.head, entry), entry.hash)

    def check_text(self, body: str, said_hash: str) -> ParsedEntry:
        """Check the next entry by its text and its hash alone, and return its content.

        Raises:
            BrokenChain: it is invalid here; the text says how.
        """
        members = read_body(body)
        around = read_members(members)
        check_link(self.chain.head, JournalEntry(around.seq, around.kind, around.release, body, said_hash))
        if around.account != self.chain.name:
            raise BrokenChain(MISFILED)
        return self._take(members, said_hash)

    def _take(self, members: dict[str, Any], said_hash: str) -> ParsedEntry:
        chain, entry = self.chain, entries.read(members)
        before, content = Before.of(chain, entry), entry.content
        proposed, held = before.proposed, before.held
        entry.follow(chain, Head(entry.seq, said_hash))
        if isinstance(content, Decided) and content.proposal is not None:
            _check_second(entry, content, proposed, self._lives)
        if isinstance(content, ChangeApproved) and proposed is not None:
            _check_persons("the change", proposed.by, proposed.approved, entry, self._lives)
        if isinstance(content, Approved) and held is not None:
            _check_persons("the release", held.by, before.approved, entry, self._lives)
        self.approvals.take(entry, before)
        if self._lives is not None:
            own = content.own if isinstance(content, Registration) else held is None or held.charge.own
            own = own and not isinstance(content, Allotted)  # of a steward who reaches the account's parent alone
            self._refuse(self._lives.fault(entry, chain.name if own else None))
        match content:
            case Registration():
                self._check_price(content.accountant, content.charge)
                self._check_asked(content.accountant, content.charge, content)
                self._check_caps(content.accountant, entry.release_id, content.charge)
                self._keep(entry.release_id, content.charge)
            case Expired():
                _check_end(held, entry.time)
                self._charged.pop(entry.release_id, None)
            case Voided():
                self._charged.pop(entry.release_id, None)
            case PriceChanged():
                self._take_price(entry.release_id, content)
            case CapsChanged():
                self._take_caps(content)
            case Allotted():
                self._check_allotted(content)
            case Drawn():
                self.draws.take(entry.seq, entry.release_id, content)
        return entry

    def _take_price(self, release: str, content: PriceChanged) -> None:
        charged, caps = self._charged.get(release), content.caps or {}
        if charged is None or charged.amount != content.was:
            raise BrokenChain("the release had another price")
        if charged.periods != content.periods:
            raise BrokenChain("the release had other periods")
        under = dict(charged.caps)
        if any(under.get(tag) != was for tag, (was, _) in caps.items()):
            raise BrokenChain("the release had another price under a cap")
        under |= {tag: price for tag, (_, price) in caps.items()}
        self._charged[release] = charged = charged._replace(amount=content.price, caps=tuple(under.items()))
        self._check_price(content.accountant, charged)
        self._check_under_caps(content.accountant, release, charged)

    def _take_caps(self, content: CapsChanged) -> None:
        with _readable():
            self.caps.take(content)
        for cap in content.caps:
            for release, amount in cap.held:
                charged = self._charged.get(release)
                if charged is not None:
                    self._charged[release] = charged._replace(caps=tuple(sorted((*charged.caps, (cap.tag, amount)))))
        if content.accountant not in COMPARABLE:
            return
        with _readable():
            right = self.caps.are_held_right(content)
            right = right and not self.caps.wrong_prices_before(content, content.accountant)
        if not right:
            raise BrokenChain("a cap does not count the earlier releases at their price")

    def _check_allotted(self, content: Allotted) -> None:
        """Require that an entry counts the mechanism of an allotment at the accountant's prices.

        Raises:
            BrokenChain: the entry counts another mechanism, or other prices.
        """
        with _readable():
            leaf = declared_in(entry_texts.read_text(content.plan))
            right = leaf is not None and content.plan == text_of(_allotment_like(leaf, content.child))
            if right and content.accountant in COMPARABLE and leaf is not None:
                right = self.is_right(content.accountant, content.plan, content.price) and all(
                    may_be_charge_by(
                        content.accountant,
                        entry_texts.price_of_key(amount),
                        price_under(leaf, self.chain.caps.find(tag).weights, self.chain.neighbouring),
                    )
                    for tag, amount in content.caps or ()
                )
        if not right:
            raise BrokenChain("the allotment is none, or is not charged at its price")

    def _check_caps(self, accountant: str, release: str, charge: Charge) -> None:
        """Require that a release is charged under exactly the caps whose tags it carries."""
        if not (self.chain.caps or charge.caps):
            return
        with _readable():
            carried = self._carried(charge.subject, tuple(self.chain.caps))
        if carried != [tag for tag, _ in charge.caps]:
            raise BrokenChain("the release is not charged under the caps whose tags it carries")
        self._check_under_caps(accountant, release, charge)

    def _stated_tags(self, subject: SpendingKey, _: tuple[str, ...]) -> list[str]:
        self.caps.require_statements(subject)
        return self.caps.tags_of(subject)

    def _check_under_caps(self, accountant: str, release: str, charge: Charge) -> None:
        """Require that prices under caps are those of the accountant; those of unlike versions are not checked."""
        with _readable():
            wrong = accountant in COMPARABLE and self.caps.wrong_prices(
                release, charge.subject, charge.caps, accountant
            )
        if wrong:
            raise BrokenChain("the price under a cap is not that of the tagged part")

    def _keep(self, release: str, charge: Charge) -> None:
        if self._repriced is None or release in self._repriced:
            plan, tags = charge.subject
            self._charged[release] = charge._replace(subject=(self._plans.setdefault(plan, plan), tags))

    def take_committed(self, entry: JournalEntry, release: str, accountant: str, charge: Charge) -> None:
        """Check the next entry, whose text is known to register this release at once.

        Args:
            accountant: the version that priced the release.
            charge: the release as the account counts it, at the price that the entry states.

        Raises:
            BrokenChain: it is invalid here; the text says how.
        """
        check_link(self.chain.head, entry)
        if (entry.kind, entry.release_id) != ("committed", release):
            raise BrokenChain(MISFILED)
        self.chain.commit(charge)
        self.chain.head = Head(entry.seq, entry.hash)
        self._check_price(accountant, charge)
        self._check_asked(accountant, charge, None)
        self._check_caps(accountant, release, charge)
        self._keep(release, charge)

    def check_key(self, key: str, actor: str, at: str, *, own: bool) -> None:
        """Check an entry that registers a release at once against the life of the key that it names.

        Args:
            key: its id.
            own: the release was registered in this account, and not in one under it.

        Raises:
            BrokenChain: the key cannot have made it.
        """
        if self._lives is not None:
            self._refuse(self._lives.fault_of(key, actor, at, self.chain.name if own else None, "pipeline"))

    def _refuse(self, fault: str | None) -> None:
        if fault is not None:
            raise BrokenChain(fault)

    def check_end(self) -> None:
        """Require that all entries together add up, and that nothing was drawn twice.

        Raises:
            BadRow: a draw repeats an earlier one.
            BrokenChain: there is an invalid price or plan, or more was taken away than was charged.
        """
        self.draws.check_repeats()
        try:
            _ = self.chain.spent, self.chain.reserved, self.chain.next_expiry
            caps = [cap.totals for cap in self.chain.caps.values()]
            if not self.chain.is_below_zero and not any(totals.is_below_zero for totals in caps):
                return
        except UNREADABLE:
            pass
        raise BrokenChain("the entries do not add up")

    def _check_price(self, accountant: str, charge: Charge) -> None:
        """Require that a price is the accountant's price of the plan; those of unlike versions are not checked."""
        try:
            if accountant not in COMPARABLE:
                entry_texts.price_of_key(charge.amount)
                return
            right = self.is_right(accountant, charge.subject[0], charge.amount)
        except UNREADABLE:
            raise BrokenChain("the entry's price or plan is not valid") from None
        if not right:
            raise BrokenChain("the price is not that of the plan")

    def _check_asked(self, accountant: str, charge: Charge, content: Registration | None) -> None:
        """Require that a release asks for the approval of this account's approvers where its loss is above their price.

        Accounts without approvers are not checked: older versions wrote their entries too.

        Args:
            content: of the entry; None: it registers a release at once.

        Raises:
            BrokenChain: the release is above that price, and its entry does not ask for their approval.
        """
        chain = self.chain
        if chain.approvers is None or chain.approval_above is None or accountant not in COMPARABLE:
            return
        if isinstance(content, Proposed) and chain.name in (content.approval_of or ()):
            return
        with _readable():
            size = spent_alone(chain.current_budget, chain.weights, self.present_price(charge.subject[0]))
            asks = size is None or size > Fraction(chain.approval_above)
        if asks:
            raise BrokenChain(UNAPPROVED)

    def is_right(self, accountant: str, plan: str, amount: PriceKey) -> bool:
        """Return whether an accountant may have charged this amount for a plan; cached for plans that are not long.

        Raises:
            InvalidInput: the plan has no meaning under the account's relation.
        """
        return (self._known if len(plan) < entry_texts.SHORT else self._is_right)(accountant, plan, amount)

    def _is_right(self, accountant: str, plan: str, amount: PriceKey) -> bool:
        return may_be_charge_by(accountant, entry_texts.price_of_key(amount), self.present_price(plan))

    def present_price(self, plan: str) -> Price:
        """Return the present accountant's price of a plan for this account.

        Raises:
            InvalidInput: the plan has no meaning under the account's relation.
        """
        if len(plan) < entry_texts.SHORT:
            return self._price_of(plan)
        orders = " ".join(map(str, self.chain.weights.orders))
        inputs = f"{self.chain.neighbouring} {orders} {plan}"  # neither of the first two has a brace
        digest = hashlib.sha256(inputs.encode()).hexdigest()
        found = _long_prices.get(digest)
        if found is None:
            found = self._price_of(plan)
            _long_prices.put(digest, found)
        return found

    def _price_of(self, plan: str) -> Price:
        value = entry_texts.read_text(plan)
        check_relation(value, self.chain.neighbouring)
        return price(value, self.chain.neighbouring, self.chain.weights.orders)
