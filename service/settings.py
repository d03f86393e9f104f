"""Settings from the environment, read once. Each variable is ``SERVICE_`` and its field's name; empty means unset."""

import json
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.config import JsonDict
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import URL, make_url

from service.accepted_values import accepted
from service.errors import StartupRefused
from service.urls import is_confidential, is_origin, read_url

_DRIVERS = ("sqlite", "postgresql+psycopg")
_SHORTEST_KEY = 32  # characters: a random key of that length cannot be guessed
_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# bytes: even if only small bodies are allowed, their parsed content can be many times as large
_LEAST_ROOM = 256 * 2**20
_OWN_MEMORY, _A_CONNECTION = 2**30, 2 * 2**20  # bytes; of a connection: its incoming and outgoing buffers
# Small bodies reserve nothing. If every connection sends the largest small body, they add 1/16 to the limit.
SMALL_BODIES = 16
# bytes: of the modules that a helper shares with others, of its work, and of a body while it is received and read
_MODULES, _WORK, _COPIES = 2**28, 2**29, 4
_ALIKE = 0.85  # from 0 to 1: how alike a misspelt name is
_MOST_ACCOUNTS = 100  # in the metrics: each is two series for ever

RATE_UNITS = {"second": 1, "minute": 60, "hour": 3600}
_VISIBLE = r"^[\x20-\x7e]+$"  # what RFC 6749 (A.1) allows in the id of a client
_SCOPE = r"^([\x21\x23-\x5b\x5d-\x7e]+ )*openid( [\x21\x23-\x5b\x5d-\x7e]+)*$"
MAIL_ADDRESS = r"^[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*$"
"""The addresses of mail that are accepted."""
_ACCOUNT = r"^[a-z0-9._-]+$"


def _form(words: str) -> JsonDict:
    """Return the part of a setting's schema that states its pattern in words."""
    return {"form": words}


_Rate = Annotated[
    str,
    Field(
        pattern=rf"^(off|[1-9][0-9]{{0,6}}/({'|'.join(RATE_UNITS)}))$",
        json_schema_extra=_form("`off`, or a rate such as `600/minute`, by second, minute or hour"),
    ),
]


class Settings(BaseSettings):
    """The configuration of an operator. Unknown variables are ignored, so a newer deployment file still starts."""

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
        description="SQLAlchemy URL, sqlite:///file or postgresql+psycopg://...; by default a file in data_dir. The"
        " ledger's tables on PostgreSQL are in the schema public, or in the one that the URL names if it ends with"
        " ?options=-csearch_path%3Dschema; the role's own search_path has no effect.",
    )
    secret_file: Path | None = Field(
        None,
        description="The installation's secret, created when absent. By default service.secret next to data_dir, not"
        " in it, so that a stolen backup of the data does not contain it.",
    )
    high_water_file: Path | None = Field(
        None,
        description="The high-water mark: the last known entry of each journal. With it the service detects and"
        " refuses a ledger that was replaced by an older one. By default beside the secret, with the"
        " ending .high-water. It is written every second and must be outside data_dir, so that it is not"
        " restored together with the ledger.",
    )
    bootstrap_key: SecretStr | None = Field(
        None,
        description="The first steward key, at least 32 characters. The service uses it only while the database has no"
        " key, and to recognise it at the upgrade to keys with seals.",
    )
    lock_timeout_seconds: float = Field(
        30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that a charge waits for the lock of its account before the answer is 503.",
    )
    max_json_bytes: _Count = Field(64 * 2**20, description="The largest JSON body, in bytes.")
    max_arrow_bytes: _Count = Field(
        2**30, description="The largest Arrow stream, in bytes, both as received and decompressed."
    )
    max_json_items: _Count = Field(
        2_000_000,
        description="The most arrays, objects and texts in one JSON body. The memory of numbers is limited separately.",
    )
    max_json_bytes_at_once: _Count | None = Field(
        None,
        description="Bytes of memory that all JSON bodies with their parsed content may take at once; one principal"
        " may take half. If there is not enough at the moment, the answer is 503 (small requests always"
        " fit); if the limit can never admit the request, it is 413. By default 64 times the largest body,"
        " at most a quarter of the memory of the machine or container, and at least 256 MiB and the"
        " largest body.",
    )
    max_arrow_bytes_at_once: _Count | None = Field(
        None,
        description="Bytes of memory that Arrow streams, and draws that are read back, may take at once: a count"
        " takes up to 56 bytes. By default 16 times the largest stream, within the same bounds.",
    )
    max_plan_nodes: _Count = Field(100_000, description="The most nodes in one plan.")
    max_plan_depth: _Count = Field(32, description="The deepest nesting of one plan.")
    max_plan_osgt: _Count = Field(
        100, description="The most different osgt, discrete_osgt and noise_table mechanisms in one plan."
    )
    require_partitions: bool = Field(
        False,
        description="Refuse a draw for a partition of a mechanism whose plan declares none: the ledger cannot check"
        " that such partitions are disjoint, and charges them once.",
    )
    writer_threads: _Count = Field(16, description="Threads for requests that write to the ledger.")
    helper_processes: Annotated[int, Field(ge=0, le=64)] = Field(
        2,
        description="Processes that answer long requests (computations, journals, pictures). One principal may use"
        " all but one of them; with 1, others wait while it is in use. With 0 the serving process answers them itself.",
    )
    helper_seconds: _Seconds = Field(
        600.0,
        description="Seconds in which the answer of a helper process must begin. After that time the service ends the"
        " work and answers 503.",
    )
    max_work: _Count = Field(
        100_000,
        description="The most work of one request that computes figures or prices a plan, estimated before it begins."
        " A unit is about a millisecond of one core.",
    )
    job_workers: _Count = Field(1, description="Experiments that run at once, each in a process of its own.")
    job_retention_days: Annotated[int, Field(ge=1, le=36_500)] = Field(
        365, description="Days after which a job that has ended is deleted with its result."
    )
    draw_retention_days: Annotated[int, Field(ge=1, le=36_500)] | None = Field(
        None,
        description="Days after which the noisy counts of a draw are removed from the ledger; by default never."
        " Their hash is kept, and a second draw stays refused.",
    )
    session_hours: Annotated[int, Field(ge=1, le=168)] = Field(
        8, description="Hours after which a user of the web pages has to sign in again."
    )
    shutdown_seconds: _Count = Field(30, description="Seconds that running requests have to end after SIGTERM.")
    drain_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        0.0,
        description="Seconds after SIGTERM in which GET /readyz answers 503 and everything else continues, before the"
        " process begins to stop. Choose more than a proxy's interval between health checks.",
    )
    trusted_proxies: str = Field(
        "127.0.0.1,::1",
        description="Addresses, or networks such as 10.0.0.0/8, separated by commas, of proxies whose X-Forwarded-For"
        " and X-Forwarded-Proto are trusted; * for any address, if only the proxy can reach the service.",
    )
    oidc_issuer: str | None = Field(
        None,
        description="The issuer of OpenID Connect tokens that are accepted beside API keys: its URL as in its"
        " tokens, with https unless it is on this machine. Needs oidc_audience.",
    )
    oidc_audience: str | None = Field(None, description="The audience that a token's aud must contain: this service.")
    oidc_role_claim: str = Field(
        "roles",
        description="The claim that contains the role, a text or a list of texts; its name, or a JSON pointer such"
        " as /realm_access/roles.",
    )
    oidc_roles: Annotated[dict[str, Literal["auditor", "pipeline", "approver", "steward"]], NoDecode] = Field(
        {"auditor": "auditor", "pipeline": "pipeline", "approver": "approver", "steward": "steward"},
        min_length=1,
        description="A JSON object from values of the role claim to roles. If a token has several, the one that"
        " includes the others counts; pipeline and approver exclude each other.",
    )
    oidc_accounts_claim: str | None = Field(
        None,
        description="The claim that lists the accounts that a token may use, * for all; written as the role claim."
        " By default tokens are not limited to accounts.",
    )
    oidc_principal_claim: str = Field(
        "sub",
        description="The claim that names the person; each person must have one name for ever. Written as the role"
        " claim.",
    )
    oidc_client_id: Annotated[str, Field(min_length=1, max_length=200, pattern=_VISIBLE)] | None = Field(
        None,
        json_schema_extra=_form("1 to 200 printable ASCII characters"),
        description="The client that the issuer knows this service as. With it, people sign in to the web pages at the"
        " issuer. Needs oidc_issuer and public_url.",
    )
    oidc_client_secret: SecretStr | None = Field(
        None,
        description="The client's secret at the issuer, sent by HTTP Basic; none for a public client. Needs"
        " oidc_client_id.",
    )
    oidc_scope: Annotated[str, Field(max_length=1000, pattern=_SCOPE)] = Field(
        "openid",
        json_schema_extra=_form("scopes that are separated by one blank each, `openid` among them"),
        description="The scopes that sign-in asks the issuer for, separated by blanks; openid among them.",
    )
    oidc_name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$")] | None = Field(
        None,
        json_schema_extra=_form("1 to 60 characters in one line"),
        description="The issuer's name on the sign-in page; by default its host.",
    )
    public_url: str | None = Field(
        None,
        description="The address at which browsers reach the pages, such as https://ledger.agency.example, without a"
        " path; with https unless it is on this machine. The issuer sends browsers back to it after sign-in.",
    )
    max_connections: _Count = Field(
        1000,
        description="The most connections at once. A new connection above the limit closes the oldest idle one;"
        " without an idle one, the answer is 503, except for probes and metrics.",
    )
    max_connections_of_address: _Count | None = Field(
        None,
        description="The most connections at once of one address that is not a trusted proxy. By default half of"
        " max_connections.",
    )
    connection_rate: _Rate = Field(
        "100/second",
        description="The most new connections of one address that is not a trusted proxy, written as key_rate. Above"
        " it they are closed without an answer. Clients that keep their connections open need few.",
    )
    keep_alive_seconds: _Count = Field(5, description="Seconds that a connection stays open without a request.")
    header_seconds: _Seconds = Field(10.0, description="Seconds in which a request's headers must arrive.")
    body_seconds: _Seconds = Field(
        30.0,
        description="Seconds in which a body must arrive, plus one second for each body_bytes_per_second bytes of it.",
    )
    body_bytes_per_second: _Count = Field(
        10_000, description="The lowest rate at which a long body may arrive, in bytes per second."
    )
    answer_seconds: _Seconds = Field(
        60.0, description="Seconds after which a connection is closed if its client reads nothing of the answer."
    )
    key_rate: _Rate = Field(
        "off",
        description="The most requests of one key to one replica, such as 600/minute (or second, hour). Above it the"
        " answer is 429. All requests of a minute may come at once.",
    )
    failure_rate: _Rate = Field(
        "10000/minute",
        description="The most requests without a valid key from one address, written as key_rate. Above it an invalid"
        " key is answered 429, and keys that the service has not accepted before are checked one after the other.",
    )
    hsts_seconds: Annotated[int, Field(ge=0)] = Field(
        0, description="max-age of Strict-Transport-Security; 0 sends none. Set it only where every client uses TLS."
    )
    notice: str = Field(
        "", max_length=200, description="A sentence at the top of every page, such as what this service is for."
    )
    metrics_accounts: Annotated[
        tuple[Annotated[str, Field(pattern=_ACCOUNT)], ...], NoDecode, Field(max_length=_MOST_ACCOUNTS)
    ] = Field(
        (),
        json_schema_extra=_form(f"names of at most {_MOST_ACCOUNTS} accounts, separated by commas"),
        description="Accounts, separated by commas, whose budgets /metrics shows to every client that reaches it; at"
        f" most {_MOST_ACCOUNTS}.",
    )
    webhook_networks: str = Field(
        "",
        description="Addresses, or networks such as 10.0.0.0/8, separated by commas, that webhooks may reach although"
        " they are not public. Only within them may a webhook have http, and only on this machine (127.0.0.1).",
    )
    smtp_host: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        None, description="The server that sends notifications by mail; without it there are none. Needs smtp_from."
    )
    smtp_port: Annotated[int, Field(ge=1, le=65535)] = Field(587, description="Its port.")
    smtp_tls: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="Its encryption: by STARTTLS, from the first byte, or none."
    )
    smtp_user: str | None = Field(None, description="The user that it knows the service as. Needs smtp_password.")
    smtp_password: SecretStr | None = Field(None, description="That user's password.")
    smtp_password_file: Path | None = Field(None, description="A file with that password, instead of smtp_password.")
    smtp_from: Annotated[str, Field(max_length=254, pattern=MAIL_ADDRESS)] | None = Field(
        None,
        json_schema_extra=_form("a mail address"),
        description="The address that mail is from, such as ledger@agency.example.",
    )
    tracing: bool = Field(
        False,
        description="Send traces of requests and transactions by OpenTelemetry, to OTEL_EXPORTER_OTLP_ENDPOINT and"
        " by the other standard variables. Needs the packages of requirements-otel.lock.",
    )
    log_level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        "info", description="The least severe level that is logged."
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("trusted_proxies")
    @classmethod
    def _addresses(cls, value: str) -> str:
        if value.strip() == "*":
            return "*"
        try:
            _networks(value)
        except ValueError:
            raise ValueError(
                "expected *, or addresses and networks such as 10.0.0.0/8 (without host bits), separated by commas"
            ) from None
        return value

    @field_validator("webhook_networks")
    @classmethod
    def _reachable(cls, value: str) -> str:
        try:
            _networks(value)
        except ValueError:
            raise ValueError(
                "expected addresses and networks such as 10.0.0.0/8 (without host bits), separated by commas"
            ) from None
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _confidential(cls, value: str | None) -> str | None:
        if value is not None and (not is_confidential(value) or "?" in value or "#" in value):
            raise ValueError("expected a URL with https, or with http on this machine, without ? and #")
        return value

    @field_validator("public_url")
    @classmethod
    def _origin(cls, value: str | None) -> str | None:
        if value is not None and not (is_confidential(value) and is_origin(value)):
            raise ValueError(
                "expected an address such as https://ledger.agency.example, without a path, and with http only on this"
                " machine"
            )
        return value

    @model_validator(mode="after")
    def _mark_outside(self) -> Self:
        """Refuse a mark that whoever restores the data restores with them: it would hide what is missing."""
        embedded = make_url(self.resolved_database_url).get_backend_name() == "sqlite"
        if embedded and self.resolved_high_water_file.resolve().is_relative_to(self.data_dir.resolve()):
            raise ValueError(
                "expected SERVICE_HIGH_WATER_FILE (by default beside SERVICE_SECRET_FILE) outside SERVICE_DATA_DIR, so"
                " that it is not restored together with the ledger"
            )
        return self

    @field_validator("oidc_client_secret")
    @classmethod
    def _visible(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch(_VISIBLE, value.get_secret_value()):
            raise ValueError("expected printable ASCII characters, without a line break")
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
        if self.oidc_client_id is not None and (self.oidc_issuer is None or self.public_url is None):
            raise ValueError("expected SERVICE_OIDC_ISSUER and SERVICE_PUBLIC_URL beside SERVICE_OIDC_CLIENT_ID")
        if self.oidc_client_secret is not None and self.oidc_client_id is None:
            raise ValueError("expected SERVICE_OIDC_CLIENT_ID beside SERVICE_OIDC_CLIENT_SECRET")
        return self

    @model_validator(mode="after")
    def _mail(self) -> Self:
        if self.smtp_host is not None and self.smtp_from is None:
            raise ValueError("expected SERVICE_SMTP_FROM beside SERVICE_SMTP_HOST")
        if self.smtp_password is not None and self.smtp_password_file is not None:
            raise ValueError("expected SERVICE_SMTP_PASSWORD or SERVICE_SMTP_PASSWORD_FILE, and not both")
        has_password = self.smtp_password is not None or self.smtp_password_file is not None
        if (self.smtp_user is not None) != has_password:
            raise ValueError("expected SERVICE_SMTP_USER and a password together")
        if self.smtp_user is not None and self.smtp_tls == "none":
            raise ValueError("expected SERVICE_SMTP_TLS other than none, or the password would be sent in plain text")
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
            raise ValueError(f"expected at least SERVICE_{largest.upper()}, or a body of that size could never be read")
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
            raise ValueError("expected a file: a ledger in memory would lose its entries")
        return value

    @property
    def resolved_webhook_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The networks that webhooks may reach although they are not public."""
        return _networks(self.webhook_networks)

    @property
    def resolved_json_bytes_at_once(self) -> int:
        """The bytes that JSON bodies may take at once."""
        return self.max_json_bytes_at_once or _default_room(self.max_json_bytes, 64)

    @property
    def resolved_arrow_bytes_at_once(self) -> int:
        """The bytes that Arrow streams may take at once."""
        return self.max_arrow_bytes_at_once or _default_room(self.max_arrow_bytes, 16)

    @property
    def most_memory(self) -> int:
        """The most bytes that the serving process takes: its own, those of all bodies, and those of connections."""
        bodies = self.resolved_json_bytes_at_once + self.resolved_arrow_bytes_at_once
        return _OWN_MEMORY + bodies + bodies // SMALL_BODIES + self.max_connections * _A_CONNECTION

    @property
    def memory_of_helper(self) -> int:
        """The bytes that one request may take in a helper process, beside those that it reserves."""
        return _WORK + _COPIES * self.max_json_bytes

    @property
    def most_memory_of_helpers(self) -> int:
        """The most bytes that the helper processes take, with the one that they are forked from."""
        return bool(self.helper_processes) * _MODULES + self.helper_processes * (_MODULES + self.memory_of_helper)

    @property
    def resolved_connections_of_address(self) -> int:
        """The most connections of one address."""
        return self.max_connections_of_address or max(1, self.max_connections // 2)

    @property
    def resolved_database_url(self) -> str:
        """The database's URL. A path is made absolute, so that a later change of directory cannot move the ledger."""
        if self.database_url is not None:
            return self.database_url
        file = self.data_dir.resolve() / "ledger.db"
        return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)

    @property
    def resolved_secret_file(self) -> Path:
        """The path of the installation's secret, which need not exist yet."""
        return self.secret_file or self.data_dir.resolve().parent / "service.secret"

    @property
    def resolved_high_water_file(self) -> Path:
        """The path of the high-water mark."""
        return self.high_water_file or self.resolved_secret_file.with_suffix(".high-water")


def _networks(value: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks of a list with commas.

    Raises:
        ValueError: one is no network.
    """
    return tuple(ip_network(given) for given in filter(None, map(str.strip, value.split(","))))


def _default_room(largest: int, times: int) -> int:
    """Return the default memory limit of bodies: so many of the largest, within a quarter of the memory."""
    return max(largest, _LEAST_ROOM, min(times * largest, available_memory() // 4))


def available_memory() -> int:
    """Return the bytes of memory of this process's machine, or of its container where that has fewer."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    return min(machine, int(text)) if text.isdigit() else machine


def logged(settings: Settings) -> dict[str, Any]:
    """Return the settings for a log: secrets only as set or not, URLs without passwords."""
    values = settings.model_dump(mode="json")
    for name in ("bootstrap_key", "oidc_client_secret", "smtp_password"):
        values[name] = getattr(settings, name) is not None
    url = make_url(settings.resolved_database_url)
    values["database_url"] = url.set(query={}).render_as_string(hide_password=True)
    return values


def unknown_variables() -> dict[str, str]:
    """Return variables that begin as settings do but are none, each with what to set instead, if that is likely."""
    known = {f"SERVICE_{name}".upper() for name in Settings.model_fields}
    options = {"SERVICE_PORT": "the option --port of serve", "SERVICE_HOST": "the option --host of serve"}
    found = sorted(name for name in os.environ if name.upper().startswith("SERVICE_") and name.upper() not in known)
    return {name: options.get(name) or "".join(get_close_matches(name.upper(), known, 1, _ALIKE)) for name in found}


def read_settings() -> Settings:
    """Read the environment.

    Raises:
        StartupRefused: a variable has an invalid value. The message has the variable and the accepted values, never the
            value, which may be a key or a password.
    """
    try:
        return Settings()
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        words = dict.fromkeys(_words(fault["loc"], fault["type"], fault["msg"]) for fault in found)
        raise StartupRefused("; ".join(words)) from None


def _words(place: Sequence[int | str], kind: str, message: str) -> str:
    """Return what is wrong with a variable, without its value.

    Args:
        place: the setting and the place in it; empty where settings do not fit each other.
        kind: pydantic's type of the fault. Only texts of type ``value_error`` are our own.
        message: pydantic's text.
    """
    if kind == "value_error":
        text = message.removeprefix("Value error, ")
    else:
        text = f"expected {accepted(Settings.model_json_schema()['properties'][str(place[0])])}"
    return f"SERVICE_{place[0]}".upper() + f": {text}" if place else text
