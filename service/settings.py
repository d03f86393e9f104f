"""The environment, read once. Every variable is named ``SERVICE_`` and its field; an empty one counts as unset."""

import ipaddress
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from service.errors import StartupRefused

_DRIVERS = ("sqlite", "postgresql+psycopg")
_SHORTEST_KEY = 32  # characters: nobody guesses a random one
_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_LEAST_ROOM = 256 * 2**20  # bytes: however small the largest body, it may unfold to as much as any of its size
_OWN_MEMORY, _A_CONNECTION = 2**30, 2 * 2**20  # bytes; of a connection what is on its way in and out
SMALL_BODIES = (
    16  # bodies that take no room make this part of it in all, if every connection brings the largest of them
)
_MOST_ACCOUNTS = 100  # in the metrics: each is two series for ever

RATE_UNITS = {"second": 1, "minute": 60, "hour": 3600}
_Rate = Annotated[str, Field(pattern=rf"^(off|[1-9][0-9]{{0,6}}/({'|'.join(RATE_UNITS)}))$")]


class Settings(BaseSettings):
    """What an operator may configure. Unknown variables end no start, so that a newer deployment file still starts."""

    model_config = SettingsConfigDict(
        env_prefix="SERVICE_",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,  # a refused key or URL must not reach a log
    )

    data_dir: Path = Field(Path("data"), description="Directory of the embedded database.")
    database_url: str | None = Field(
        None,
        repr=False,  # it may hold a password
        description="SQLAlchemy URL, sqlite:///file or postgresql+psycopg://...; by default a file in data_dir.",
    )
    secret_file: Path | None = Field(
        None,
        description="The installation's secret, made when absent; by default service.secret next to data_dir,"
        " not in it, so that a stolen backup of the data does not carry it.",
    )
    high_water_file: Path | None = Field(
        None,
        description="The high-water mark: how far each journal had come, by which a ledger that was replaced by an"
        " older one is known and refused. By default beside the secret, with the ending .high-water. It is written"
        " every second and must be outside data_dir, so that nobody restores it with the ledger.",
    )
    bootstrap_key: SecretStr | None = Field(
        None,
        description="The first steward key, at least 32 characters; used only while the database has no key, and to"
        " know it again at the upgrade to keys with seals.",
    )
    lock_timeout_seconds: float = Field(
        30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that a charge waits for its account before the answer is 503.",
    )
    max_json_bytes: _Count = Field(64 * 2**20, description="Largest JSON body, in bytes.")
    max_arrow_bytes: _Count = Field(
        2**30, description="Largest Arrow stream, in bytes, as it comes and when it is decompressed."
    )
    max_json_items: _Count = Field(
        2_000_000, description="Most arrays, objects and texts in one JSON body. Numbers are bounded by their memory."
    )
    max_json_bytes_at_once: _Count | None = Field(
        None,
        description="Bytes of memory that JSON bodies take at once with what they unfold to, half of them for one"
        " principal; a request for which there is no room is answered with 503, small ones never, and with 413 where"
        " there is never room. By default 64 times the largest and at most a quarter of the memory that the machine or"
        " the container has, but at least 256 MiB and the largest body.",
    )
    max_arrow_bytes_at_once: _Count | None = Field(
        None,
        description="The same of Arrow streams and of draws that are read back: a count takes up to 56 bytes. By"
        " default 16 times the largest, within the same bounds.",
    )
    max_plan_nodes: _Count = Field(100_000, description="Most nodes in one plan.")
    max_plan_depth: _Count = Field(32, description="Deepest nesting of one plan.")
    max_plan_osgt: _Count = Field(100, description="Most unlike osgt and discrete_osgt mechanisms in one plan.")
    require_partitions: bool = Field(
        False,
        description="Refuse a draw for a partition of a mechanism whose plan declares none: the ledger cannot tell"
        " whether such partitions are disjoint, and charges them once.",
    )
    writer_threads: _Count = Field(16, description="Threads that serve requests which write to the ledger.")
    helper_processes: Annotated[int, Field(ge=0, le=64)] = Field(
        2,
        description="Processes that answer what takes long (computations, journals, pictures), of which one principal"
        " has all but one at most; 0 has them answered by the serving process itself.",
    )
    helper_seconds: _Seconds = Field(
        600.0, description="Seconds in which such an answer has to begin; beyond them it is 503 and the work is ended."
    )
    max_work: _Count = Field(
        100_000,
        description="The most work of one request that computes or is priced, counted before it begins; a unit is about"
        " a millisecond of one core.",
    )
    job_workers: _Count = Field(1, description="Experiments that run at once, each in a process of its own.")
    job_retention_days: Annotated[int, Field(ge=1, le=36_500)] = Field(
        365, description="Days after which a job that has ended is deleted with its result."
    )
    draw_retention_days: Annotated[int, Field(ge=1, le=36_500)] | None = Field(
        None,
        description="Days after which the noisy counts of a draw are removed from the ledger; by default never. Their"
        " hash stays, and a second draw stays refused.",
    )
    session_hours: Annotated[int, Field(ge=1, le=168)] = Field(
        8, description="Hours after which whoever signed in on the web pages has to sign in again."
    )
    shutdown_seconds: _Count = Field(30, description="Seconds that running requests have to end after SIGTERM.")
    drain_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        0.0,
        description="Seconds after SIGTERM in which only GET /readyz says that the process ends, before it does: long"
        " enough for a proxy to ask it.",
    )
    trusted_proxies: str = Field(
        "127.0.0.1,::1",
        description="Addresses, with commas between them, of proxies whose X-Forwarded-For and X-Forwarded-Proto are"
        " believed; * for any, where only the proxy reaches the service.",
    )
    oidc_issuer: str | None = Field(
        None,
        description="Issuer of OpenID Connect tokens that are taken beside API keys: its URL as its tokens have it,"
        " with https unless it is on this machine. Needs oidc_audience.",
    )
    oidc_audience: str | None = Field(None, description="What the tokens' aud must name: this service.")
    oidc_role_claim: str = Field(
        "roles",
        description="The claim that gives the role, a text or a list of texts; its name, or a JSON pointer such as"
        " /realm_access/roles.",
    )
    oidc_roles: Annotated[dict[str, Literal["auditor", "pipeline", "steward"]], NoDecode] = Field(
        {"auditor": "auditor", "pipeline": "pipeline", "steward": "steward"},
        min_length=1,
        description="Which value of the role claim gives which role, as a JSON object; of several the highest counts.",
    )
    oidc_accounts_claim: str | None = Field(
        None,
        description="The claim that lists the accounts that a token may touch, * for all; named as the role claim."
        " By default tokens are not limited to accounts.",
    )
    oidc_principal_claim: str = Field(
        "sub",
        description="The claim that names the person, of whom each must have one name, for ever; named as the role"
        " claim.",
    )
    max_connections: _Count = Field(
        1000,
        description="Connections at once. For who comes beyond them the oldest idle one is closed; where none is, the"
        " answer is 503, but for probes and metrics.",
    )
    max_connections_of_address: _Count | None = Field(
        None,
        description="The same of one address that is no trusted proxy. By default half of max_connections.",
    )
    connection_rate: _Rate = Field(
        "100/second",
        description="New connections of one address that is no trusted proxy, as in key_rate; beyond it they are closed"
        " without an answer. Clients that keep their connections need few.",
    )
    keep_alive_seconds: _Count = Field(5, description="Seconds that a connection stays open without a request.")
    header_seconds: _Seconds = Field(10.0, description="Seconds that a request's headers may take to come.")
    body_seconds: _Seconds = Field(
        30.0,
        description="Seconds that a body may take to come, and one more for every body_bytes_per_second of it.",
    )
    body_bytes_per_second: _Count = Field(10_000, description="What a slow body must come at in the long run.")
    answer_seconds: _Seconds = Field(
        60.0, description="Seconds after which a connection ends whose client takes nothing of its answer."
    )
    key_rate: _Rate = Field(
        "off",
        description="Requests of one key to one replica, such as 600/minute (or second, hour), beyond which the answer"
        " is 429. They may come all at once.",
    )
    failure_rate: _Rate = Field(
        "10000/minute",
        description="Requests without a valid key from one address, likewise; beyond it keys that were not valid before"
        " are looked up one after the other.",
    )
    hsts_seconds: Annotated[int, Field(ge=0)] = Field(
        0, description="max-age of Strict-Transport-Security; 0 sends none. Only where every client comes over TLS."
    )
    metrics_accounts: Annotated[tuple[str, ...], NoDecode, Field(max_length=_MOST_ACCOUNTS)] = Field(
        (),
        description="Accounts, with commas between them, whose budgets /metrics shows to everybody who can reach it; at"
        f" most {_MOST_ACCOUNTS}.",
    )
    tracing: bool = Field(
        False,
        description="Send traces of requests and transactions by OpenTelemetry, as OTEL_EXPORTER_OTLP_ENDPOINT and the"
        " other standard variables say. Takes requirements-otel.lock.",
    )
    log_level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        "info", description="Least severe level that is logged."
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("oidc_issuer")
    @classmethod
    def _confidential(cls, value: str | None) -> str | None:
        if value is not None and (not is_confidential(value) or "?" in value or "#" in value):
            raise ValueError("expected a URL with https, or with http on this machine, without ? and #")
        return value

    @field_validator("oidc_roles", mode="before")
    @classmethod
    def _as_json(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError('expected a JSON object such as {"budget-office": "steward"}') from None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.oidc_issuer is None) != (self.oidc_audience is None):
            raise ValueError("expected SERVICE_OIDC_ISSUER and SERVICE_OIDC_AUDIENCE together")
        return self

    @field_validator("metrics_accounts", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value

    @field_validator("max_json_bytes_at_once", "max_arrow_bytes_at_once")
    @classmethod
    def _room_for_one(cls, value: int | None, read: ValidationInfo) -> int | None:
        largest = str(read.field_name).removesuffix("_at_once")
        if value is not None and value < read.data.get(largest, 0):
            raise ValueError(f"expected at least SERVICE_{largest.upper()}, or a body of that size would never fit")
        return value

    @field_validator("bootstrap_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value) < _SHORTEST_KEY:
            raise ValueError(f"expected at least {_SHORTEST_KEY} characters, got {len(value)}")
        return value

    @field_validator("database_url")
    @classmethod
    def _supported(cls, value: str | None) -> str | None:
        if value is None:
            return None
        url = read_url(value)
        if url.drivername not in _DRIVERS:
            raise ValueError(f"expected a URL that starts with one of {', '.join(f'{name}://' for name in _DRIVERS)}")
        if url.drivername == "sqlite" and url.database in (None, "", ":memory:"):
            raise ValueError("expected a file: a ledger in memory would forget what was spent")
        return value

    @property
    def resolved_json_bytes_at_once(self) -> int:
        """How many bytes JSON may take at once."""
        return self.max_json_bytes_at_once or _default_room(self.max_json_bytes, 64)

    @property
    def resolved_arrow_bytes_at_once(self) -> int:
        """How many bytes Arrow streams may take at once."""
        return self.max_arrow_bytes_at_once or _default_room(self.max_arrow_bytes, 16)

    @property
    def most_memory(self) -> int:
        """The most bytes that the serving process takes: its own, those of bodies, small ones too, of connections."""
        bodies = self.resolved_json_bytes_at_once + self.resolved_arrow_bytes_at_once
        return _OWN_MEMORY + bodies + bodies // SMALL_BODIES + self.max_connections * _A_CONNECTION

    @property
    def resolved_connections_of_address(self) -> int:
        """How many connections one address may have."""
        return self.max_connections_of_address or max(1, self.max_connections // 2)

    @property
    def resolved_database_url(self) -> str:
        """The database to use. A path is made absolute, so that a later change of directory cannot move the ledger."""
        if self.database_url is not None:
            return self.database_url
        file = self.data_dir.resolve() / "ledger.db"
        return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)

    @property
    def resolved_secret_file(self) -> Path:
        """Where the installation's secret is, or will be made."""
        return self.secret_file or self.data_dir.resolve().parent / "service.secret"

    @property
    def resolved_high_water_file(self) -> Path:
        """Where the high-water mark is kept."""
        return self.high_water_file or self.resolved_secret_file.with_suffix(".high-water")


def _default_room(largest: int, times: int) -> int:
    """Return the room for bodies that is not set: for so many of the largest, but within a quarter of the memory."""
    return max(largest, _LEAST_ROOM, min(times * largest, memory_there() // 4))


def memory_there() -> int:
    """Return the bytes of memory that the process may have: the machine's, or its container's where that has fewer."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    return min(machine, int(text)) if text.isdigit() else machine


def read_url(text: str) -> URL:
    """A database's URL; nothing of what was given is in the message of the refusal, which may hold a password.

    Raises:
        ValueError: it is none, or what is part of a password in it would be taken for a host, or the other way round.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # ValueError: a port that is not a number
        raise ValueError("expected an SQLAlchemy URL such as postgresql+psycopg://user@host/database") from None
    if url.get_backend_name() != "sqlite":
        if text.count("@") > 1:
            raise ValueError("expected one @, before the host; write any other, as in a password, as %40")
        if "\0" in unquote(text):
            raise ValueError("expected a URL without null characters (%00)")  # libpq would end there and connect
    return url


def is_loopback(url: str) -> bool:
    """Whether a URL is of this very machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # no address, or no URL
        return False


def is_confidential(url: str) -> bool:
    """Whether nobody on the way can change what is at a URL: it is with https, or on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url)))


def shown(settings: Settings) -> dict[str, Any]:
    """The settings as a log may have them: of a secret that it is set, of a URL what holds no password."""
    values = settings.model_dump(mode="json")
    values["bootstrap_key"] = settings.bootstrap_key is not None
    url = make_url(settings.resolved_database_url)
    values["database_url"] = url.set(query={}).render_as_string(hide_password=True)
    return values


def unknown_variables() -> list[str]:
    """The variables that look like settings and are none: misspelt ones, most likely."""
    known = {f"SERVICE_{name}".upper() for name in Settings.model_fields}
    return sorted(name for name in os.environ if name.upper().startswith("SERVICE_") and name.upper() not in known)


def read_settings() -> Settings:
    """Read the environment.

    Raises:
        StartupRefused: a variable has a value that cannot be used; the message names the variable and
            what was expected, never the value, which may be a key or a password.
    """
    try:
        return Settings()
    except ValidationError as error:
        faults = (
            f"{'_'.join(('SERVICE', *map(str, fault['loc']))).upper()}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_context=False, include_input=False)
        )
        raise StartupRefused("; ".join(faults)) from None
