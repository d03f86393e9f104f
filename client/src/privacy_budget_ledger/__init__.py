"""A client of the privacy-budget ledger: register releases as plans, and draw noisy tables."""

from privacy_budget_ledger import errors, plans
from privacy_budget_ledger.balances import Balance
from privacy_budget_ledger.budgets import ApproximateBudget, Budget, PureBudget, RdpBudget, ZcdpBudget
from privacy_budget_ledger.clients import AsyncClient, Client
from privacy_budget_ledger.errors import LedgerError, Problem
from privacy_budget_ledger.exchange import Retries
from privacy_budget_ledger.following import Entry
from privacy_budget_ledger.heads import Head, KeptHeads
from privacy_budget_ledger.operations import Account, Drawn, NewRelease, Release
from privacy_budget_ledger.version import __version__

__all__ = [
    "Account",
    "ApproximateBudget",
    "AsyncClient",
    "Balance",
    "Budget",
    "Client",
    "Drawn",
    "Entry",
    "Head",
    "KeptHeads",
    "LedgerError",
    "NewRelease",
    "Problem",
    "PureBudget",
    "RdpBudget",
    "Release",
    "Retries",
    "ZcdpBudget",
    "__version__",
    "errors",
    "plans",
]
