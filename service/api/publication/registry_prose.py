"""Sentences of a registry entry about the ledger's facts: Markdown with formulas."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import Any

from service import __version__
from service.api.schemas.count_accuracy import count_accuracies
from service.api.schemas.exact_numbers import number_up
from service.api.schemas.guarantees import cost_of, remaining_body
from service.api.schemas.periods import statement_of
from service.ledger.accounts.accounts import AccountRecord
from service.ledger.accounts.budgets import delta_of_whole, write_budget
from service.ledger.releases.releases import ReleaseRecord
from service.privacy.accounting.privacy_filter import Budget, Definition
from service.privacy.mechanisms import Declaration, Declared, Mechanism, mechanism_label
from service.privacy.plans import Plan
from service.privacy.plans.notation import write_plan
from service.privacy.plans.walking import Neighbouring, parts_of, runs_of

_MOST_ROWS = 100  # different mechanisms in the table
_MOST_LINES = 60  # of the outline
_MOST_NAMES = 3  # of equal mechanisms
_MOST_MOVES = 4  # alternatives, and distances in each
_LONGEST_FIGURE = 40  # characters
_CONFIDENCE = Fraction(95, 100)  # of the margins
_SUPPRESSED = (
    "With a threshold, only keys that the data contain are published, and of these only those whose noisy count is at"
    " least as large. Margins of error then hold before suppression.\n"
)

_LONG_NUMBER = re.compile(r"[0-9]{2,}/[0-9]{3,}|[0-9.e+-]{20,}")  # whose size is hard to read

_ADJACENT = {
    Neighbouring.ADD_REMOVE: "Two datasets are neighbours where one holds exactly one record that the other does not"
    " hold, and all other records are the same (add or remove one).",
    Neighbouring.REPLACE_ONE: "Two datasets are neighbours where they hold equally many records and differ in one of"
    " them, which may have any values in each (replace one).",
}
_VARIANTS = {
    Definition.PURE: "Pure DP",
    Definition.ZCDP: "Zero-concentrated DP",
    Definition.RDP: "Renyi DP",
    Definition.APPROXIMATE: "Approximate DP",
}
_ANALYSES = {
    "zcdp": "converted from zCDP",
    "rdp": "converted from Rényi DP",
    "pure": "by pure DP",
    "analytic": r"by $\rho + 2\sqrt{\rho\ln(1/\delta)}$",
    "tight": "by the privacy profile of the plan",
}
_HOLDS = {
    True: "also where queries are chosen after seeing earlier answers",
    False: "for the plan as it was registered",
}
_FILTERS = {
    Definition.PURE: r"their $\varepsilon$ are added up",
    Definition.ZCDP: r"their $\rho$ are added up",
    Definition.RDP: "their Rényi losses at the budget's order are added up",
    Definition.APPROXIMATE: r"their Rényi losses are added up at many orders, whose mixture bounds $\delta$",
}


def slug(text: str) -> str:
    """Return a text as a part of an address: ASCII letters and digits with hyphens."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_text).strip("-")[:200].strip("-") or "entry"


def adjacency(account: AccountRecord) -> str:
    """Return the definition of a record and of neighbouring datasets."""
    unit = f"A record is all that the data hold of one {account.unit}. {_ADJACENT[account.neighbouring]}"
    return unit if account.periods is None else f"{unit} {statement_of(account, account.periods)}"


def parameters(account: AccountRecord, plan: Plan, delta: Fraction) -> dict[str, Any]:
    """Return a plan's guarantee by the variant of the account's budget, in figures and in words; all are upper bounds.

    For (epsilon, delta) it is the least that holds under adaptive choice, or where there is none the least of the fixed
    plan.
    """
    alpha = account.budget.alpha
    cost = cost_of(plan, account.neighbouring, (delta,), () if alpha is None else (alpha,))
    if plan.DECLARED:  # its fixed plan gives no better bound
        cost = cost | {"approximate": [figure for figure in cost["approximate"] if figure["adaptive"]]}
    best = cost["best"][0]
    statement = best["adaptive"] or best["fixed"]
    approximate = {} if statement is None else {name: statement[name] for name in ("epsilon", "delta")}
    variant, figures = _VARIANTS[account.budget.definition], approximate
    if cost["delta"] or variant == "Approximate DP":
        variant = "Approximate DP" if approximate else "Custom"
    elif variant == "Pure DP" and cost["pure"]:
        figures = {"epsilon": cost["pure"]["epsilon"]}
    elif variant == "Zero-concentrated DP" and cost["zcdp"]:
        figures = {"rho": cost["zcdp"]["rho"], **approximate}
    return {
        "variant_name": variant,
        "privacy_parameters": figures,
        "privacy_parameters_details": "\n".join([*_figures(cost), "", "Losses are in nats, and rounded up."]),
    }


def _figures(cost: dict[str, Any]) -> Iterator[str]:
    for notion, name, title in (("pure", "epsilon", r"pure DP: $\varepsilon"), ("zcdp", "rho", r"zCDP: $\rho")):
        if cost[notion]:
            shown, exact = str(cost[notion][name]), cost[notion].get(f"{name}_exact")
            yield rf"- {title} = {exact} \le {shown}$" if exact not in (None, shown) else f"- {title} = {shown}$"
    for point in cost["rdp"]:
        if point["epsilon"] is not None:
            yield rf"- Rényi DP of order $\alpha = {point['alpha']}$: $\varepsilon = {point['epsilon']}$"
    if cost["delta"]:
        yield rf"- but for a probability of $\delta = {cost['delta']}$, which mechanisms declare"
    for statement in cost["approximate"]:
        at = rf"$\varepsilon = {statement['epsilon']}$ at $\delta = {statement['delta']}$"
        yield rf"- $(\varepsilon, \delta)$-DP: {at}, {_ANALYSES[statement['via']]}; {_HOLDS[statement['adaptive']]}"


def budget_parameters(account: AccountRecord, largest: Budget, delta: Fraction) -> dict[str, Any]:
    """Return the guarantee of an account: its largest budget bounds all its releases together."""
    if largest.definition is Definition.APPROXIMATE:
        figures = {"epsilon": number_up(largest.cap), "delta": number_up(largest.delta)}
        shown: dict[str, Any] = {
            "variant_name": "Approximate DP",
            "privacy_parameters": figures,
            "privacy_parameters_details": "",
        }
    else:
        plan = Declared(guarantee=_declaration(largest), reference="the budget")
        shown = parameters(account, plan, delta_of_whole(largest, delta))
    budget_text = ", ".join(f"{name} = {value}" for name, value in write_budget(largest).items())
    remaining = ", ".join(
        f"{name} = {value}" for name, value in remaining_body(account).items() if name != "definition"
    )
    sentences = (
        f"The parameters are the account's budget, the largest that it has had: {budget_text}. At journal entry"
        f" {account.head.seq} (SHA-256 {account.head.hash}) there is left of it: {remaining}."
    )
    details = shown["privacy_parameters_details"]
    shown["privacy_parameters_details"] = f"{sentences}\n\n{details}" if details else sentences
    return shown


def _declaration(budget: Budget) -> Declaration:
    match budget.definition:
        case Definition.PURE:
            return Declaration(epsilon=budget.cap, delta=budget.declared_delta)
        case Definition.ZCDP:
            return Declaration(rho=budget.cap, delta=budget.declared_delta)
        case _:
            return Declaration(rdp=((budget.alpha or Fraction(2), budget.cap),), delta=budget.declared_delta)


def of_account(account: AccountRecord) -> str:
    """Describe the composition of an account's releases."""
    windows = "" if account.periods is None else _of_windows(account.periods.several)
    return (
        f"Releases are charged to the ledger account {_code(account.name)} before anything is published, and"
        f" {_FILTERS[account.budget.definition]}. A release that would exceed the budget is refused: a privacy filter,"
        f" which holds although releases and their parameters are chosen after seeing earlier answers.{windows}"
        f" {account.releases} {'release is' if account.releases == 1 else 'releases are'} counted at journal entry"
        f" {account.head.seq} (SHA-256 {account.head.hash}), including those of accounts under it."
    )


def _of_windows(several: int | None) -> str:
    if several is None:
        return (
            " This is done for each set of periods in which one unit can be, over the releases that read one of them."
        )
    largest = "the period with the largest losses" if several == 1 else f"the {several} periods with the largest losses"
    return (
        f" This is done for {largest}, found for each figure by itself, together with the releases that read all"
        " periods. A release counts once for each of these periods that it reads."
    )


def of_release(account: AccountRecord, release: ReleaseRecord, plan: Plan) -> str:
    """Describe the composition of a release, and its record in the ledger."""
    lines = list(_outline(plan, 0))
    more = [f"- ... and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    recorded = (
        f"The release is recorded in the ledger account {_code(account.name)}, journal entry {release.head.seq}"
        f" (SHA-256 {release.head.hash}). Its state is {release.state}."
        + ("" if release.periods is None else f" It reads the periods {_code(release.periods)}.")
    )
    return "\n".join([*lines[:_MOST_LINES], *more, "", recorded])


def _outline(plan: Plan, depth: int) -> Iterator[str]:
    """Yield a line for each node; mechanisms side by side are only counted, since their table names them."""
    alone = len(parts_of(plan)) > 1 and all(isinstance(part, Mechanism) for part in parts_of(plan))
    count = len(parts_of(plan))
    parts = f"{count} {'mechanisms' if alone else 'part' if count == 1 else 'parts'}"
    start = "  " * depth + "- "
    yield start + (_code(plan.name or "mechanism") if isinstance(plan, Mechanism) else plan.in_words(parts))
    for part in () if alone else parts_of(plan):
        yield from _outline(part, depth + 1)


def mechanisms(plan: Plan, neighbouring: Neighbouring, draws: int) -> str:
    """Describe each different mechanism of a plan with its parameters, and the generation of its noise.

    Args:
        plan: the plan.
        neighbouring: the relation of its account, which sets the default number of cells.
        draws: the number of draws by this service.

    Returns:
        A table in Markdown, followed by a paragraph.
    """
    rows: dict[str, tuple[list[str], int, list[str], Mechanism]] = {}
    drawable = False
    for mechanism, times in runs_of(plan):
        drawable = drawable or mechanism.DRAWN
        cells = _row(mechanism, neighbouring)
        row, before, names, first = rows.setdefault(" ".join(cells), (cells, 0, [], mechanism))
        if mechanism.name is not None and len(names) < _MOST_NAMES:
            names.append(_code(mechanism.name))
        rows[" ".join(cells)] = row, before + times, names, first
    table = [
        "| mechanism | parameters | sensitivity | cells | times | such as | margin of error (95 %) |",
        "|---|---|---|---|---|---|---|",
    ]
    table += [
        f"| {' | '.join(row)} | {times} | {', '.join(names)} | {_margin(first)} |"
        for row, times, names, first in islice(rows.values(), _MOST_ROWS)
    ]
    more = [f"\n... and {len(rows) - _MOST_ROWS} more different mechanisms."] if len(rows) > _MOST_ROWS else []
    suppressed = [_SUPPRESSED] if any(mechanism.threshold is not None for *_, mechanism in rows.values()) else []
    return "\n".join([*table, *more, "", *suppressed, _implementation(draws, drawable)])


def _margin(mechanism: Mechanism) -> str:
    """Return the margin of error of one noisy count; a dash where there is no figure."""
    ((_, figures),) = count_accuracies([(mechanism, 1)], _CONFIDENCE, {})
    return "-" if figures["moe"] is None else f"±{figures['moe']}"


def _row(mechanism: Mechanism, neighbouring: Neighbouring) -> list[str]:
    document = write_plan(replace(mechanism, name=None, tags=()))
    kind, sensitivity = document.pop("type"), document.pop("sensitivity", "")
    default = "" if not mechanism.ADDITIVE else 1 if neighbouring is Neighbouring.ADD_REMOVE else 2
    cells = document.pop("cells", default)
    moves = document.pop("moves", None)
    if moves is not None:
        sensitivity, cells = _moves_in_words(moves), ""
    reference = document.pop("reference", None)
    text = ", ".join(f"{name} = {_figure(value)}" for name, value in document.items())
    text += "" if reference is None else f" ({_plain(reference)})"
    return [mechanism_label(kind), text, _figure(sensitivity), str(cells)]


def _moves_in_words(moves: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Return what one record can do, as "2 in 1 cell, 1 in 3 cells; or 1 in 9 cells"; of many the first few."""
    alternatives = [
        _first_few((f"{_figure(one['by'])} in {one['cells']} cell{'s' * (one['cells'] > 1)}" for one in moved), ", ")
        for moved in moves
    ]
    return _first_few(alternatives, "; or ")


def _first_few(texts: Iterable[str], between: str) -> str:
    few = list(islice(texts, _MOST_MOVES + 1))
    return between.join([*few[:_MOST_MOVES], *["..."][: len(few) - _MOST_MOVES]])


def _figure(value: Any) -> str:
    """Return a parameter as it was stated, where it is short enough to read."""
    if isinstance(value, list):
        return "; ".join(", ".join(f"{name} {_figure(of)}" for name, of in point.items()) for point in value)
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} = {_figure(of)}" for name, of in value.items()) + ")"
    text = _plain(str(value))
    if not _LONG_NUMBER.fullmatch(text):
        return text
    shown = number_up(Fraction(text))
    about = "more than 10^308" if shown is None else f"about {shown:.8g}"
    return about if len(text) > _LONGEST_FIGURE else f"{text} ({about})"


def _implementation(draws: int, drawable: bool) -> str:
    if not draws:
        return (
            "The ledger service drew no noise of these mechanisms"
            f"{', although it could draw some of it' if drawable else ''}; it accounts for the stated parameters."
        )
    return (
        f"Draws by the privacy-budget ledger service (now version {__version__}): {draws}. The noise is an integer of"
        " exactly the stated law. It is never formed in floating point, and comes from an AES-256-CTR keystream under"
        " fresh 256-bit keys of the operating system. A mechanism is drawn once for each partition. The noisy counts"
        " are stored and answered again, so no count is released twice with fresh noise. True counts are not stored."
        " The time of a single draw depends on its value."
    )


def _code(name: str) -> str:
    return f"`{_plain(name).replace('`', ' ')}`"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
