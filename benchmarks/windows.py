"""Accounts with periods over HTTP: a charge to twelve windows beside a plain one, and accounts of many windows."""

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import httpx
from sqlalchemy import Connection

from benchmarks.servers import CALLER, KEY, carry_out, opened, processor_seconds, service_server, sqlite_database
from service.ledger.accounts import account_opening, account_periods, accounts
from service.ledger.accounts.account_opening import NewAccount
from service.ledger.accounts.budgets import read_budget
from service.ledger.journal.journal import Head
from service.ledger.spending.spending_rows import ChargedSubplans, Subplans
from service.ledger.spending.subplans import charged_to, subplans_of
from service.ledger.spending.window_rows import EMPTY
from service.ledger.spending.window_state import WindowState
from service.privacy.accounting.pricing import Price, price
from service.privacy.periods import Periods, PeriodSet, read_account_periods
from service.privacy.plans.notation import read_plan
from service.privacy.plans.walking import Neighbouring

_BUDGETS: dict[str, dict[str, str]] = {
    "zcdp": {"definition": "zcdp", "rho": "1000000"},
    "approximate": {"definition": "approximate", "epsilon": "1000000", "delta": "1e-6"},
}
_YEAR = {"calendar": "index", "participation": {"offsets": list(range(12))}}  # a unit is in twelve waves in a row
_ONCE = {"calendar": "index", "participation": {"offsets": [0]}}
_ROUNDS, _CHARGES = 12, 25
_TIMES_PLAIN, _BALANCE, _TO_ALL = 2, 1.0, 0.05  # targets: times, seconds, seconds
_WAVES, _OF_EACH = 9_989, 10  # with windows of twelve waves: 10,000 windows, of some 100,000 releases
_DISTINCT = 1_000  # mechanisms
_BALANCES = {  # names of accounts, their budgets, and the distinct mechanisms that read each wave
    "balance-1": ("zcdp", 1),
    "balance-2": ("approximate", 1),
    "balance-3": ("zcdp", _OF_EACH),
}
_WINDOWS, _OF_ONE = 100_000, 1_000  # in all, and that one release touches
_REPEATED = 15


class Times(NamedTuple):
    """The median of elapsed times, and the mean of the server's processor times, in milliseconds."""

    elapsed: float
    processor: float


def run() -> None:
    """Print the times of the three, with their targets."""
    with ExitStack() as stack:
        client = _client(stack, stack.enter_context(sqlite_database()))
        _compare_charges(client)
        _charge_all(client)
        url = stack.enter_context(sqlite_database())
        _fill(url)
        _ask_balances(_client(stack, url))


def _client(stack: ExitStack, url: str) -> httpx.Client:
    address = stack.enter_context(service_server(url))
    headers = {"Authorization": f"Bearer {KEY}"}
    return stack.enter_context(httpx.Client(base_url=address, headers=headers, timeout=600, trust_env=False))


def _compare_charges(client: httpx.Client) -> None:
    """Charge a plain account and one of windows in turns, after a year in which each window had other charges."""
    print(f"Charges over HTTP to twelve windows and to none, in turns, SQLite, 1 client (target: {_TIMES_PLAIN} times)")
    print(f"  {'milliseconds':<40}{'plain':>9}{'windows':>9}{'times':>7}{'processor':>11}{'windows':>9}{'times':>7}")
    for budget in _BUDGETS:
        periods = {f"{budget}-plain": None, f"{budget}-windows": _YEAR}
        for name, stated in periods.items():
            _open(client, name, budget, stated)
            _send(client, name, [_release(100 + wave, None if stated is None else wave) for wave in range(12)])
        times: dict[str, list[Times]] = {name: [] for name in periods}
        for turn in range(_ROUNDS):
            for name, found in times.items():
                found.append(
                    _time(client, name, [_release(100, None if periods[name] is None else 12 + turn)] * _CHARGES)
                )
        plain, windows = (Times(*map(median, zip(*found, strict=True))) for found in times.values())
        print(
            f"  {budget:<40}{plain.elapsed:9.2f}{windows.elapsed:9.2f}{windows.elapsed / plain.elapsed:7.2f}"
            f"{plain.processor:11.2f}{windows.processor:9.2f}{windows.processor / plain.processor:7.2f}",
            flush=True,
        )


def _fill(url: str) -> None:
    """Store the rows as the releases leave them, without the journal's entries, which a balance does not read."""
    database = opened(url)
    for name, (budget, unlike) in _BALANCES.items():
        periods = read_account_periods(_YEAR, "")
        new = NewAccount(name, "person", Neighbouring.ADD_REMOVE, "", read_budget(_BUDGETS[budget]), periods=periods)
        carry_out(database, account_opening.open_account(database, CALLER, new))

        def work(connection: Connection, name: str = name, unlike: int = unlike, periods: Periods = periods) -> None:
            account = accounts.read_account(connection, name)
            plans = [read_plan(_release(10**6 + number, None)["plan"]) for number in range(_DISTINCT)]
            prices = [price(plan, account.neighbouring, account.weights.orders) for plan in plans]
            spent, of_wave = Subplans(), dict[int, list[tuple[Price, int]]]()
            for wave in range(_WAVES):
                some = Counter((wave * _OF_EACH + number % unlike) % _DISTINCT for number in range(_OF_EACH))
                of_wave[wave] = [(prices[number], times) for number, times in some.items()]
                charged = account_periods.charged(periods, PeriodSet(((wave, wave),)), "")
                for number, times in some.items():
                    (subplan,) = charged_to(subplans_of(plans[number], ()), charged.text)
                    spent[subplan] = times
            windows = {
                place: EMPTY.changed(
                    2, releases=_OF_EACH * len(touched), committed=[one for some in touched for one in some]
                )
                for place in range(-11, _WAVES)
                if (touched := [of_wave[wave] for wave in range(place, place + 12) if wave in of_wave])
            }
            state = WindowState.of(account.weights, periods, windows=windows)
            head = Head(1 + _WAVES * _OF_EACH, account.head.hash)
            after = replace(account, windows=state, totals=state.bound, releases=_WAVES * _OF_EACH, head=head)
            accounts.save(connection, [after], ChargedSubplans(spent, Subplans()))

        database.write(work, is_committed=lambda *_: False)
    database.close()


def _ask_balances(client: httpx.Client) -> None:
    """Ask for the balance of accounts of many windows and releases; none of its figures are stored."""
    print(f"Balance of 10,000 windows and {_WAVES * _OF_EACH:,} releases (target: under {_BALANCE:.0f} s)")
    for name, (budget, unlike) in _BALANCES.items():
        taken: list[float] = []
        for _ in range(_REPEATED):
            started = time.perf_counter()
            answer = client.get(f"/v1/accounts/{name}/balance").raise_for_status().json()
            taken.append(time.perf_counter() - started)
        if answer["window"] is None:
            raise RuntimeError("expected the balance of a window")
        what = f"{budget}, {_WAVES * unlike:,} distinct releases"
        print(f"  {what:<52}{taken[0]:6.2f} s first{median(taken):7.2f} s median{min(taken):7.2f} s least", flush=True)


def _charge_all(client: httpx.Client) -> None:
    """Charge releases to all periods of an account of many windows, of which some fit and some do not."""
    print(f'Releases to "all" in an account of {_WINDOWS:,} windows (target: under {1e3 * _TO_ALL:.0f} ms)')
    for budget in _BUDGETS:
        name = f"{budget}-all"
        _open(client, name, budget, _ONCE)
        for first in range(0, _WINDOWS, _OF_ONE):
            _send(client, name, [_release(100 + first // _OF_ONE, {"from": first, "to": first + _OF_ONE - 1})])
        for what, size, status in (("admitted", "100", 201), ("refused", "1e-9", 409)):
            taken: list[float] = []
            for _ in range(_REPEATED):
                started = time.perf_counter()
                answer = client.post(f"/v1/accounts/{name}/releases", json=_release(size, "all"))
                taken.append(time.perf_counter() - started)
                if answer.status_code != status:
                    raise RuntimeError(f"expected {status}, got {answer.text}")
            print(
                f"  {f'{budget}, {what}':<52}{1e3 * median(taken):8.1f} ms median{1e3 * max(taken):8.1f} ms most",
                flush=True,
            )


def _open(client: httpx.Client, name: str, budget: str, periods: dict[str, Any] | None) -> None:
    account = {"name": name, "unit": "person", "neighbouring": "add_remove", "budget": _BUDGETS[budget]}
    client.post("/v1/accounts", json=account | ({} if periods is None else {"periods": periods})).raise_for_status()


def _release(sigma_squared: int | str, periods: Any) -> dict[str, Any]:
    """Return a release; periods are a wave, or as requests state them."""
    stated = {"list": [periods]} if isinstance(periods, int) else periods
    plan = {"type": "discrete_gaussian", "sigma_squared": str(sigma_squared)}
    return {"name": "small", "plan": plan} | ({} if stated is None else {"periods": stated})


def _send(client: httpx.Client, name: str, releases: list[dict[str, Any]]) -> None:
    answer = client.post(f"/v1/accounts/{name}/releases/batch", json={"releases": releases})
    if answer.status_code != 201:
        raise RuntimeError(answer.text)


def _time(client: httpx.Client, name: str, releases: list[dict[str, Any]]) -> Times:
    address, taken = str(client.base_url).rstrip("/"), list[float]()
    first = processor_seconds(address)
    for release in releases:
        started = time.perf_counter()
        client.post(f"/v1/accounts/{name}/releases", json=release).raise_for_status()
        taken.append(time.perf_counter() - started)
    return Times(1e3 * median(taken), 1e3 * (processor_seconds(address) - first) / len(releases))


if __name__ == "__main__":
    run()
