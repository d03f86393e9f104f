"""The prices that the present accountant charges under caps on tags, along an account's chain."""

from collections import Counter
from collections.abc import Iterable, Mapping

from service.ledger.accounts import caps
from service.ledger.accounts.budgets import write_price
from service.ledger.accounts.caps import Cap
from service.ledger.journal import entry_texts
from service.ledger.journal.account_state import AccountState
from service.ledger.journal.chains import BrokenChain
from service.ledger.journal.charge_sums import CapPrices
from service.ledger.journal.entries import CapsChanged
from service.ledger.journal.entry_texts import NOTHING, PriceKey, SpendingKey
from service.ledger.spending.spending_rows import Subplans
from service.privacy.accounting.pricing import ACCOUNTANT, Price
from service.privacy.accounting.totals import may_be_charge_by
from service.privacy.plans.tagged import statement_faults, tagged_part

WrongPrices = Mapping[str, tuple[PriceKey, Price]]


class CapCheck:
    """The check of prices under the caps of one account, entry by entry.

    Args:
        chain: the account, which has followed each entry before it is checked here.
    """

    def __init__(self, chain: AccountState) -> None:
        self._chain = chain
        self._before: dict[str, Subplans] = {}  # by the tags of later caps: what they count
        self._late: dict[str, set[str]] = {}  # by release: the later caps that count it as held
        self._known: caps.KnownPrices = {}

    def take(self, content: CapsChanged) -> None:
        """Remember what new caps count.

        Raises:
            BrokenChain: a cap leaves out a release that is held and not free under it, or counts one that is not held.
                This does not depend on the version of the accountant that priced them.
        """
        for stated in content.caps:
            if stated.admission is not None:
                self._before[stated.tag] = Counter(self._chain.spent)
            counted = {release for release, _ in stated.held}
            for release in counted:
                self._late.setdefault(release, set()).add(stated.tag)
            if stated.admission is not None and not (
                {release for release, _ in self.held_under(stated.tag)} <= counted <= self._chain.held.keys()
            ):
                raise BrokenChain("a cap does not count what is held")

    def tags_of(self, subject: SpendingKey) -> list[str]:
        """Return the present caps whose tags a release carries."""
        plan = entry_texts.read_text(subject[0])
        return [tag for tag in sorted(self._chain.caps) if tagged_part(plan, subject[1], tag) is not None]

    def require_statements(self, subject: SpendingKey) -> None:
        """Require that each mechanism of a release says what it reads.

        Raises:
            BrokenChain: a mechanism does not say it.
        """
        plan, capped = entry_texts.read_text(subject[0]), self._chain.caps.keys()
        if next(statement_faults(plan, capped, self._chain.name, "", subject[1]), None) is not None:
            raise BrokenChain("a mechanism does not say whether it reads what a cap is on")

    def present_price(self, release: str, subject: SpendingKey, tag: str) -> Price:
        """Return the price of a release under a cap that it is charged to."""
        if tag in self._late.get(release, ()):
            return self._price_of_earlier(entry_texts.subplans_of(subject), tag)
        part = tagged_part(entry_texts.read_text(subject[0]), subject[1], tag)
        if part is None:
            raise BrokenChain("the release does not carry the tag of a cap that it is charged to")
        return caps.price_under(part, self._chain.caps.find(tag).weights, self._chain.neighbouring)

    def present_price_before(self, tag: str) -> Price:
        """Return the price of the releases that had committed before a cap was set."""
        return self._price_of_earlier(self._before[tag], tag)

    def _price_of_earlier(self, subplans: Subplans, tag: str) -> Price:
        cap = self._chain.caps.find(tag)
        present = Cap(tag, cap.budget, cap.weights, cap.since)
        stated = any(one.since == caps.OPENING for one in self._chain.caps.values())
        return caps.price_of_earlier(subplans, present, self._chain.neighbouring, stated=stated, known=self._known)

    def wrong_prices(
        self, release: str, subject: SpendingKey, prices: CapPrices, accountant: str = ACCOUNTANT
    ) -> WrongPrices:
        """Return the prices that are not an accountant's, with the present one's, by the tags of the caps."""
        return _wrong(accountant, ((tag, one, self.present_price(release, subject, tag)) for tag, one in prices))

    def wrong_prices_before(self, content: CapsChanged, accountant: str = ACCOUNTANT) -> WrongPrices:
        """Return the prices of what caps count that are not an accountant's, with the present one's, by tag."""
        counted = ((cap.tag, cap.counted) for cap in content.caps if cap.counted is not None)
        return _wrong(accountant, ((tag, one, self.present_price_before(tag)) for tag, one in counted))

    def are_held_right(self, content: CapsChanged) -> bool:
        """Return whether new caps count what is held, at the prices of the entry's accountant."""
        return all(
            dict(cap.held).keys() == present.keys()
            and not _wrong(content.accountant, ((release, one, present[release]) for release, one in cap.held))
            for cap in content.caps
            if cap.admission is not None
            for present in [{release: entry_texts.price_of_key(one) for release, one in self.held_under(cap.tag)}]
        )

    def held_under(self, tag: str) -> CapPrices:
        """Return the prices of what is held under a cap that was just set, by release."""
        found = []
        for release, held in sorted(self._chain.held.items()):
            price = self._price_of_earlier(entry_texts.subplans_of(held.charge.subject), tag)
            amount = entry_texts.price_key_of(write_price(price))
            if amount != NOTHING:
                found.append((release, amount))
        return tuple(found)


def _wrong(accountant: str, prices: Iterable[tuple[str, PriceKey, Price]]) -> WrongPrices:
    return {
        name: (amount, right)
        for name, amount, right in prices
        if not may_be_charge_by(accountant, entry_texts.price_of_key(amount), right)
    }
