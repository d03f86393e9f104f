"""The environment, read once. Every variable is named ``SERVICE_`` and its field; an empty one counts as unset."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from service.errors import StartupRefused

_DRIVERS = ("sqlite", "postgresql+psycopg")
_SHORTEST_KEY = 32  # characters: nobody guesses a random one
_Count = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """What an operator may configure. Unknown variables are ignored, so that a newer deployment file still starts."""

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
    bootstrap_key: SecretStr | None = Field(
        None,
        description="The first steward key, at least 32 characters; used only while the database has no key.",
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
    max_plan_nodes: _Count = Field(100_000, description="Most nodes in one plan.")
    max_plan_depth: _Count = Field(32, description="Deepest nesting of one plan.")
    max_plan_osgt: _Count = Field(100, description="Most unlike osgt and discrete_osgt mechanisms in one plan.")
    writer_threads: _Count = Field(16, description="Threads that serve requests which write to the ledger.")
    job_workers: _Count = Field(1, description="Experiments that run at once, each in a process of its own.")
    session_hours: Annotated[int, Field(ge=1, le=168)] = Field(
        8, description="Hours after which whoever signed in on the web pages has to sign in again."
    )
    shutdown_seconds: _Count = Field(30, description="Seconds that running requests have to end after SIGTERM.")
    log_level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        "info", description="Least severe level that is logged."
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

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
        try:
            url = make_url(value)
        except (ArgumentError, ValueError):  # ValueError: a port that is not a number
            raise ValueError("expected an SQLAlchemy URL such as postgresql+psycopg://user@host/database") from None
        if url.drivername not in _DRIVERS:
            raise ValueError(f"expected a URL that starts with one of {', '.join(f'{name}://' for name in _DRIVERS)}")
        if url.drivername == "sqlite" and url.database in (None, "", ":memory:"):
            raise ValueError("expected a file: a ledger in memory would forget what was spent")
        return value

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
