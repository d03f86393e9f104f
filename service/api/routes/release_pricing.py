"""Releases prepared for charging: their work is bounded, and long computations are left to a helper."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from service.api.http.dependencies import Change, HelperResult
from service.api.http.kept_figures import subject_of
from service.api.schemas.guarantees import cost_text
from service.errors import InvalidInput, ServiceError
from service.ledger.accounts import lines
from service.ledger.accounts.caps import identity_of
from service.ledger.accounts.lines import AccountCaps, Line
from service.ledger.releases import preparation, releases
from service.ledger.releases.preparation import NewRelease, Prepared, Prices
from service.ledger.spending import kept_figures as known
from service.privacy.accounting import effort
from service.privacy.accounting.guarantee import USUAL_ORDERS
from service.privacy.numerics.keyed import KeptResults, ValuesKey
from service.privacy.numerics.numbers import exact_text
from service.privacy.plans.condensed import Condensed
from service.privacy.plans.notation import check_relation
from service.privacy.plans.walking import condense

_MOST_KEPT = 256  # plans whose figures are kept; each takes some ten kilobytes

Figures = tuple[Prices, str]
"""The prices of the line's accounts and caps, and the guarantee as JSON text."""


_kept = KeptResults[Figures](_MOST_KEPT)
"""The figures that helpers computed last, by a digest of all their inputs."""


def prepared(
    change: Change, account: str, releases: Sequence[NewRelease], *, costs: bool = True
) -> tuple[list[Prepared], list[str]]:
    """Prepare releases and compute the guarantee of each, before the account is locked, since this takes long.

    Args:
        change: the request.
        account: the name of the account.
        releases: those of the request.
        costs: compute the guarantees too; without them their texts are empty.

    Raises:
        NotFound: the account does not exist.
        InvalidInput: a plan is invalid under the account's relation, or pricing all of them is too much work.
        TooManyRequests, Unavailable: no helper can price them now.
    """
    line = lines.line_of(change.database, account)
    deltas = preparation.deltas_of(change.database, line, releases)
    caps = lines.caps_of(change.database, line)
    tagged = any(own for _, own in caps)
    keys = [ValuesKey(id(one.plan), tagged and one.tags, delta) for one, delta in zip(releases, deltas, strict=True)]
    unlike = dict(zip(keys, zip(releases, deltas, strict=True), strict=True))
    requests = []
    for one, delta in unlike.values():
        check_relation(one.plan, line.neighbouring, one.pointer)
        preparation.require_statements(caps, one)
        requests.append(_PricingRequest.of(one, delta, line, caps, costs))
    if not change.prices_only:
        check_work(change.most_work, sum(one.work for one in requests), releases[0].pointer)
    figures = dict(zip(unlike, _figures(change, line, requests), strict=True))
    prices = {id(one): figures[key][0] for one, key in zip(releases, keys, strict=True)}
    new = preparation.prepare(change.database, account, releases, prices, deltas)
    return new, [figures[key][1] for key in keys]


def cost_of_stored(change: Change, account: str, release_id: str) -> str:
    """Return the guarantee of a registered release as JSON text, whatever work it takes.

    A helper computes it for a long plan, once.

    Raises:
        NotFound: the account does not exist, or has no such release.
        TooManyRequests, Unavailable: no helper can compute it now.
    """
    line, subject = lines.line_of(change.database, account), subject_of(release_id)
    with change.database.read() as connection:
        is_long = releases.plan_size(connection, release_id, line.account_id) > releases.LONG
        elsewhere = change.elsewhere if is_long else None
        if elsewhere is None:
            release = releases.read_release(connection, line.account_id, release_id)
        else:
            stored = known.read_kept(connection, change.secret, known.FOUND_BY, [subject])
            if stored:
                return stored[subject]
    if elsewhere is not None:
        found_there: list[Figures] = elsewhere("POST", f"/v1/accounts/{account}/releases/{release_id}/commit", b"")
        ((_, cost),) = found_there
        keep_costs(change, {release_id: cost})
        return cost
    request = NewRelease(release.name, release.plan, release.document, (), release.delta, "/plan")
    ((_, cost),) = _figures(change, line, [_PricingRequest.of(request, release.delta, line, (), costs=True)])
    return cost


def keep_costs(change: Change, costs: Mapping[str, str]) -> None:
    """Store the guarantees of releases with long plans, for lists and later requests.

    Args:
        change: the request.
        costs: by the releases' ids, as JSON text.
    """
    if costs:
        figures = [known.KeptFigures(subject_of(release), known.FOUND_BY, cost) for release, cost in costs.items()]
        with suppress(ServiceError):  # a later request can compute them again
            known.keep(change.database, change.secret, figures)


def check_work(most: int, work: float, pointer: str) -> None:
    """Refuse work that would take too long, before it begins.

    Args:
        most: the limit, in units of about a millisecond.
        work: the estimated work, in the same units.
        pointer: the place that the fault names.

    Raises:
        InvalidInput: the work is above the limit.
    """
    if work > most:
        detail = (
            f"expected work of at most {most} units (about milliseconds), got about {work:.0f}: send fewer different"
            " mechanisms, orders or deltas; osgt and discrete_osgt take the most"
        )
        raise InvalidInput.at(pointer, detail)


@dataclass(frozen=True, slots=True)
class _PricingRequest:
    """A release whose figures are needed; ``batch_costs``: the guarantee is one of them."""

    release: NewRelease
    delta: Fraction
    plan: Condensed
    caps: Sequence[AccountCaps]
    work: float
    costs: bool

    @classmethod
    def of(
        cls, release: NewRelease, delta: Fraction, line: Line, caps: Sequence[AccountCaps], costs: bool
    ) -> "_PricingRequest":
        plan = condense(release.plan)
        capped = (cap.weights.orders for _, own in caps for cap in own)
        work = sum(effort.of_price(plan, len(orders)) for orders in (*line.orders, *capped))
        work += effort.of_guarantee(plan, len(USUAL_ORDERS), 1) if costs else effort.of_proofs(plan)
        return cls(release, delta, plan, caps, work, costs)

    def figures(self, line: Line) -> Figures:
        prices = preparation.prices_of(line, self.caps, self.release, self.plan)
        return prices, cost_text(self.plan, line.neighbouring, self.delta) if self.costs else ""


def _figures(change: Change, line: Line, requests: Sequence[_PricingRequest]) -> list[Figures]:
    """Compute figures here where that is fast or they are cached; else by a helper."""
    if change.prices_only:
        raise HelperResult([one.figures(line) for one in requests])
    elsewhere = change.elsewhere
    keys = [_key(one, line) if one.work > effort.LIGHT else None for one in requests]
    known = [one.figures(line) if key is None else _kept.get(key) for one, key in zip(requests, keys, strict=True)]
    missing = [place for place, figures in enumerate(known) if figures is None]
    if missing:
        lacking = [requests[place] for place in missing]
        if elsewhere is None:
            computed = [one.figures(line) for one in lacking]
        else:
            documents = [
                {"name": "-", "plan": one.release.document, "delta": exact_text(one.delta), "tags": one.release.tags}
                for one in lacking
            ]
            computed = elsewhere(
                "POST", f"/v1/accounts/{line.name}/releases/batch", json.dumps({"releases": documents}).encode()
            )
        for place, figures in zip(missing, computed, strict=True):
            known[place] = figures
            _kept.put(keys[place] or "", figures)
    return [figures for figures in known if figures is not None]


def _key(request: _PricingRequest, line: Line) -> str:
    parts: tuple[str, ...] = (
        json.dumps(request.release.document), exact_text(request.delta), line.neighbouring.value, str(request.costs),
        *(",".join(map(_text, orders)) for orders in line.orders),
        json.dumps(request.release.tags if any(own for _, own in request.caps) else ()),
        *(json.dumps([account, *identity_of(cap)]) for account, own in request.caps for cap in own),
    )  # fmt: skip
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _text(order: Fraction) -> str:
    return f"{order.numerator}/{order.denominator}"
