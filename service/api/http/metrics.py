"""Prometheus metrics: counters, times and states, with no count of a table and no names beside configured accounts.

Each application has a registry of its own. Figures that the ledger counts anyway are read from it at each scrape.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import get_args

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, PlatformCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from service import __version__
from service.api.http.body_limits import Allowance
from service.api.http.fair_places import FairPlaces
from service.api.http.helper_processes import Helpers
from service.api.http.problems import KINDS
from service.errors import ServiceError
from service.ledger import jobs
from service.ledger.accounts import accounts
from service.ledger.accounts.accounts import AccountRecord, Wanted
from service.ledger.installation.high_water_keeper import MarkKeeper
from service.ledger.journal.journal import Kind
from service.ledger.notifications import deliveries
from service.ledger.releases.settlement import in_list
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.migrate import is_migrated
from service.privacy.accounting.privacy_filter import remaining
from service.privacy.numerics.numbers import double_down

router = APIRouter(include_in_schema=False)

_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_AT_ONCE = 500  # accounts that one statement reads


class Threads(ThreadPoolExecutor):
    """A thread pool that counts its waiting tasks."""

    @property
    def waiting(self) -> int:
        """The number of waiting tasks."""
        return self._work_queue.qsize()


@dataclass(frozen=True)
class MetricSources:
    """The sources of figures that are read at each scrape."""

    database: Database
    writers: Threads
    bodies: dict[str, Allowance]  # by kind
    accounts: tuple[str, ...]  # with published budgets
    turns: FairPlaces  # of requests that this process works on
    helpers: Helpers | None
    keeper: MarkKeeper | None
    unfollowed_age: Callable[[], float]  # of the oldest new entry, in seconds


@dataclass
class Metrics:
    """The metrics of one application."""

    observed: MetricSources
    in_progress: int = 0  # requests, changed only on the event loop
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    scrapes: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))

    def __post_init__(self) -> None:
        """Register the metrics."""
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Gauge("ledger_build", "1, with the version.", ["version"], registry=self.registry).labels(__version__).set(1)
        self._requests = Histogram(
            "ledger_http_request_duration_seconds",
            "Requests, from their headers to the end of their answers.",
            ["method", "route", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._refusals = Counter(
            "ledger_refusals",
            "Requests that were answered with a problem, by its code.",
            ["kind"],
            registry=self.registry,
        )
        for code in KINDS:  # all codes from the start: the rate of a counter misses its first increase otherwise
            self._refusals.labels(code)
        self._observers: dict[tuple[str, str, int], Callable[[float], None]] = {}
        self.registry.register(_States(self))

    def observe(self, method: str, route: str, status: int, seconds: float, problem: str | None) -> None:
        """Count a request; method and route are templates of the application."""
        observer = self._observers.get((method, route, status))
        if observer is None:
            observer = self._requests.labels(method, route, str(status)).observe
            self._observers[method, route, status] = observer
        observer(seconds)
        if problem is not None:
            self._refusals.labels(problem).inc()


class _States(Collector):
    """Collector of present states and of the ledger's counters."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registration would otherwise read the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all figures."""
        observed = self._metrics.observed
        progress = self._metrics.in_progress
        yield _gauge("ledger_http_requests_in_progress", "Requests that are being answered.", [], [([], progress)])
        yield from _commits(observed.database)
        yield from _bodies(observed.bodies)
        yield from _waiting(observed)
        yield from _high_water(observed)
        yield from _database_figures(observed)


def _gauge(name: str, text: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


def _commits(database: Database) -> Iterator[Metric]:
    """Yield the commits of this process, by the database's own counters."""
    counters = database.counted()
    entries = CounterMetricFamily(
        "ledger_journal_entries", "Entries in all journals, including those of parent accounts.", labels=["kind"]
    )
    releases = CounterMetricFamily("ledger_releases", "Releases that were registered.", labels=["state"])
    for kind in get_args(Kind):
        entries.add_metric([kind], counters["entries", kind])
    for state in ("committed", "proposed", "reserved"):
        releases.add_metric([state], counters["releases", state])
    yield entries
    yield releases
    draws, values = counters["draws", ""], counters["values", ""]
    notifications = CounterMetricFamily("ledger_notifications", "Tries to deliver messages.", labels=["outcome"])
    for outcome in deliveries.OUTCOMES:
        notifications.add_metric([outcome], counters["notifications", outcome])
    yield notifications
    yield CounterMetricFamily("ledger_draws", "Draws that were stored.", value=draws)
    yield CounterMetricFamily("ledger_draw_values", "Noisy values in stored draws.", value=values)


def _bodies(bodies: dict[str, Allowance]) -> Iterator[Metric]:
    sizes = [([of], float(body.taken)) for of, body in bodies.items()]
    yield _gauge("ledger_body_bytes", "Bytes of bodies of requests that are being answered.", ["media"], sizes)
    limits = [([of], float(body.at_once)) for of, body in bodies.items()]
    yield _gauge("ledger_body_bytes_limit", "The limit on the bytes of such bodies.", ["media"], limits)


def _waiting(observed: MetricSources) -> Iterator[Metric]:
    database = observed.database
    connections = [
        ([name, state], float(number))
        for name, pool in database.pools.connections().items()
        for state, number in (("in_use", pool.in_use), ("idle", pool.idle))
    ]
    yield _gauge("ledger_database_connections", "Connections to the database.", ["pool", "state"], connections)
    queues = [
        (["writer_threads"], float(observed.writers.waiting)),
        (["writers"], float(database.writers.waiting)),
        (["readers"], float(database.readers.waiting)),
        (["turns"], float(observed.turns.waiting)),
        (["helpers"], float(observed.helpers.queue.waiting if observed.helpers else 0)),
    ]
    text = "Waiting tasks: for a writer's thread, for a transaction, for a principal's turn, or for a helper."
    yield _gauge("ledger_waiting", text, ["queue"], queues)
    yield from _work(observed)


def _work(observed: MetricSources) -> Iterator[Metric]:
    """Yield the running requests and those that ended early, by reason; without names."""
    turns, helpers = observed.turns, observed.helpers
    busy = [(["turns"], float(turns.busy)), (["helpers"], float(helpers.queue.busy if helpers else 0))]
    yield _gauge("ledger_busy", "Running requests, in this process and in helpers.", ["where"], busy)
    ended = CounterMetricFamily(
        "ledger_work_ended", "Requests that ended before they were completed, by reason.", labels=["reason"]
    )
    ended.add_metric(["queue_full"], turns.refused + (helpers.queue.refused if helpers else 0))
    ended.add_metric(["hung_up"], helpers.hung_up if helpers else 0)
    ended.add_metric(["too_long"], helpers.overran if helpers else 0)
    yield ended


def _high_water(observed: MetricSources) -> Iterator[Metric]:
    """Yield the age of the high-water mark, and if the ledger is older than it or the clock was set back."""
    now = clock.now()
    written_at = now if observed.keeper is None else observed.keeper.written_at
    age = clock.between(written_at, now).total_seconds()
    yield _gauge("ledger_high_water_age_seconds", "Seconds since the high-water mark was written.", [], [([], age)])
    stopped = float(observed.database.stopped is not None)
    text = "1 where the ledger lacks entries that it had; nothing is written then."
    yield _gauge("ledger_older_than_mark", text, [], [([], stopped)])
    behind = clock.seconds_behind()
    yield _gauge("ledger_clock_behind_seconds", "Seconds by which the system's clock was set back.", [], [([], behind)])


def _database_figures(observed: MetricSources) -> Iterator[Metric]:
    """Yield the figures that only the database has; the others appear even where it does not answer."""
    migrated, jobs_by_state, age = False, dict[str, int](), 0.0
    shown: list[AccountRecord] = []
    with suppress(ServiceError, RuntimeError):
        migrated = is_migrated(observed.database)
        jobs_by_state = jobs.unfinished(observed.database)
        age = deliveries.oldest_age(observed.database)
        shown = _accounts(observed)
    yield _gauge("ledger_database_up", "1 where the database answers and is migrated.", [], [([], float(migrated))])
    states = [([state], float(number)) for state, number in jobs_by_state.items()]
    yield _gauge("ledger_jobs", "Unfinished experiments of all replicas.", ["state"], states)
    text = "Age of the oldest message of all replicas that is still to be delivered; 0 where there is none."
    yield _gauge("ledger_notification_age_seconds", text, [], [([], age)])
    text = (
        "Age of the oldest entry of which messages are still to be made, as this server knows; or since its last look."
    )
    yield _gauge("ledger_notification_unfollowed_seconds", text, [], [([], observed.unfollowed_age())])
    labels = ["account", "definition"]
    caps = [([one.name, one.budget.definition.value], double_down(one.budget.cap)) for one in shown]
    yield _gauge("ledger_budget", "The cap on an account's loss, in nats.", labels, caps)
    remainders = [
        (of, double_down(remaining(one.budget, one.weights, one.totals)))
        for one, (of, _) in zip(shown, caps, strict=True)
    ]
    yield _gauge("ledger_budget_remaining", "The remaining budget, rounded down, in nats.", labels, remainders)


def _accounts(observed: MetricSources) -> list[AccountRecord]:
    """Return those accounts with published budgets that exist."""
    if not observed.accounts:
        return []
    now, names, shown = clock.now(), sorted(observed.accounts), list[AccountRecord]()
    with observed.database.read() as connection:
        for first in range(0, len(names), _AT_ONCE):
            wanted = Wanted(only=frozenset(names[first : first + _AT_ONCE]))
            after = ""
            while page := accounts.list_accounts(connection, after, _AT_ONCE, wanted):
                shown += [in_list(connection, account, now) for account in page]
                after = page[-1].name
    return shown


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Serve the metrics, in Prometheus' text format or OpenMetrics."""
    state: Metrics = request.app.state.metrics
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    text = await to_thread.run_sync(encode, state.registry, limiter=state.scrapes)
    return Response(text, media_type=None, headers={"Content-Type": media_type})
