"""The environment: defaults, where files go, and refusals that name the variable but never its value."""

import os
from ipaddress import ip_network
from pathlib import Path

import pytest
from pydantic import ValidationError
from sqlalchemy import make_url

from service.errors import StartupRefused
from service.settings import Settings, available_memory, logged, read_settings, unknown_variables


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().startswith("SERVICE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    settings = read_settings()
    assert settings.data_dir == Path("data")
    assert settings.resolved_database_url == f"sqlite:///{tmp_path}/data/ledger.db"
    assert settings.resolved_secret_file == tmp_path / "service.secret"
    assert settings.resolved_high_water_file == tmp_path / "service.high-water"
    assert settings.bootstrap_key is None
    assert settings.lock_timeout_seconds == 30
    assert settings.max_json_bytes == 64 * 1024 * 1024
    assert (settings.max_plan_nodes, settings.max_plan_depth, settings.max_plan_osgt) == (100_000, 32, 100)


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stated = {
        "DATA_DIR": "/srv/ledger",
        "DATABASE_URL": "postgresql+psycopg://ledger@/ledger?host=/run/postgresql",
        "SECRET_FILE": "/srv/secret/service.secret",
        "HIGH_WATER_FILE": "/srv/mark/service.high-water",
        "BOOTSTRAP_KEY": "k" * 32,
        "LOCK_TIMEOUT_SECONDS": "0.5",
        "MAX_JSON_BYTES": "1000",
        "MAX_ARROW_BYTES": "2000",
        "MAX_PLAN_NODES": "10",
        "MAX_PLAN_DEPTH": "3",
        "MAX_PLAN_OSGT": "5",
        "REQUIRE_PARTITIONS": "true",
        "WRITER_THREADS": "2",
        "HELPER_PROCESSES": "3",
        "HELPER_SECONDS": "4.5",
        "MAX_WORK": "700",
        "JOB_WORKERS": "4",
        "JOB_RETENTION_DAYS": "30",
        "DRAW_RETENTION_DAYS": "3650",
        "SESSION_HOURS": "6",
        "SHUTDOWN_SECONDS": "7",
        "DRAIN_SECONDS": "2.5",
        "TRUSTED_PROXIES": "10.0.0.7",
        "OIDC_ISSUER": "https://login.example/realm",
        "OIDC_AUDIENCE": "ledger",
        "OIDC_ROLE_CLAIM": "groups",
        "OIDC_ROLES": '{"office": "steward", "staff": "auditor"}',
        "OIDC_ACCOUNTS_CLAIM": "accounts",
        "OIDC_PRINCIPAL_CLAIM": "/person/id",
        "OIDC_CLIENT_ID": "ledger-pages",
        "OIDC_CLIENT_SECRET": "a client's secret",
        "OIDC_SCOPE": "openid roles",
        "OIDC_NAME": "Agency login",
        "PUBLIC_URL": "https://ledger.example",
        "LOG_LEVEL": "WARNING",
        "MAX_JSON_BYTES_AT_ONCE": "3000",
        "MAX_ARROW_BYTES_AT_ONCE": "4000",
        "MAX_JSON_ITEMS": "70",
        "MAX_CONNECTIONS": "50",
        "MAX_CONNECTIONS_OF_ADDRESS": "20",
        "KEEP_ALIVE_SECONDS": "6",
        "HEADER_SECONDS": "1.5",
        "BODY_SECONDS": "2.5",
        "BODY_BYTES_PER_SECOND": "100",
        "ANSWER_SECONDS": "3.5",
        "KEY_RATE": "600/minute",
        "FAILURE_RATE": "10/hour",
        "HSTS_SECONDS": "31536000",
        "CONNECTION_RATE": "70/second",
        "NOTICE": "a trial",
        "METRICS_ACCOUNTS": "people, households,",
        "TRACING": "true",
        "WEBHOOK_NETWORKS": "10.1.0.0/16, fd00::/8",
        "SMTP_HOST": "mail.agency.example",
        "SMTP_PORT": "465",
        "SMTP_TLS": "tls",
        "SMTP_USER": "ledger",
        "SMTP_PASSWORD": "a password",
        "SMTP_PASSWORD_FILE": "",
        "SMTP_FROM": "ledger@agency.example",
    }
    assert {name.lower() for name in stated} == set(Settings.model_fields)
    for name, value in stated.items():
        monkeypatch.setenv(f"SERVICE_{name}", value)
    settings = read_settings()
    assert settings.resolved_database_url == stated["DATABASE_URL"]
    assert settings.resolved_secret_file == Path(stated["SECRET_FILE"])
    assert settings.resolved_high_water_file == Path(stated["HIGH_WATER_FILE"])
    assert settings.bootstrap_key is not None
    assert settings.bootstrap_key.get_secret_value() == "k" * 32
    assert settings.lock_timeout_seconds == 0.5
    assert (settings.max_json_bytes, settings.max_arrow_bytes) == (1000, 2000)
    assert (settings.max_plan_nodes, settings.max_plan_depth, settings.max_plan_osgt) == (10, 3, 5)
    assert (settings.writer_threads, settings.job_workers, settings.shutdown_seconds) == (2, 4, 7)
    assert (settings.helper_processes, settings.helper_seconds, settings.max_work) == (3, 4.5, 700)
    assert (settings.drain_seconds, settings.trusted_proxies, settings.log_level) == (2.5, "10.0.0.7", "warning")
    assert (settings.oidc_issuer, settings.oidc_audience) == ("https://login.example/realm", "ledger")
    assert (settings.oidc_role_claim, settings.oidc_accounts_claim) == ("groups", "accounts")
    assert settings.oidc_principal_claim == "/person/id"
    assert (settings.oidc_client_id, settings.oidc_scope) == ("ledger-pages", "openid roles")
    assert settings.oidc_client_secret is not None
    assert settings.oidc_client_secret.get_secret_value() == "a client's secret"
    assert (settings.oidc_name, settings.public_url) == ("Agency login", "https://ledger.example")
    assert settings.oidc_roles == {"office": "steward", "staff": "auditor"}
    assert (settings.resolved_json_bytes_at_once, settings.resolved_arrow_bytes_at_once) == (3000, 4000)
    assert (settings.max_connections, settings.keep_alive_seconds, settings.body_bytes_per_second) == (50, 6, 100)
    assert (settings.max_json_items, settings.resolved_connections_of_address) == (70, 20)
    assert (settings.header_seconds, settings.body_seconds, settings.answer_seconds) == (1.5, 2.5, 3.5)
    assert (settings.key_rate, settings.failure_rate, settings.hsts_seconds) == ("600/minute", "10/hour", 31536000)
    assert settings.connection_rate == "70/second"
    assert (settings.metrics_accounts, settings.tracing) == (("people", "households"), True)
    assert (settings.job_retention_days, settings.draw_retention_days) == (30, 3650)
    assert settings.session_hours == 6
    assert settings.resolved_webhook_networks == (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
    assert (settings.smtp_host, settings.smtp_port, settings.smtp_tls) == ("mail.agency.example", 465, "tls")
    assert (settings.smtp_user, settings.smtp_from) == ("ledger", "ledger@agency.example")
    assert settings.smtp_password is not None
    assert settings.smtp_password.get_secret_value() == "a password"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"SMTP_HOST": "mail.agency.example"}, "expected SERVICE_SMTP_FROM"),
        ({"SMTP_USER": "ledger"}, "expected SERVICE_SMTP_USER and a password together"),
        ({"SMTP_PASSWORD": "hush"}, "expected SERVICE_SMTP_USER and a password together"),
        ({"SMTP_USER": "l", "SMTP_PASSWORD": "hush", "SMTP_PASSWORD_FILE": "/run/p"}, "and not both"),
        ({"SMTP_USER": "l", "SMTP_PASSWORD": "hush", "SMTP_TLS": "none"}, "in plain text"),
    ],
)
def test_settings_of_mail_belong_together(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"SERVICE_{name}", value)
    with pytest.raises(StartupRefused, match=expected) as refused:
        read_settings()
    assert "hush" not in str(refused.value)


def test_every_field_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_default_secret_is_next_to_the_data_not_in_it(tmp_path: Path) -> None:
    data = tmp_path / "agency" / "data"
    assert Settings(data_dir=data).resolved_secret_file == tmp_path / "agency" / "service.secret"


@pytest.mark.parametrize("name", ["plain", "two words", "what?", "100%41", "a#b", "me@home:1"])
def test_any_directory_survives_being_written_as_a_url(tmp_path: Path, name: str) -> None:
    url = make_url(Settings(data_dir=tmp_path / name).resolved_database_url)
    assert url.database == str(tmp_path / name / "ledger.db")


def test_empty_and_unknown_variables_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_settings()
    monkeypatch.setenv("SERVICE_DATABASE_URL", "")
    monkeypatch.setenv("SERVICE_BOOTSTRAP_KEY", "")
    monkeypatch.setenv("SERVICE_FROM_A_LATER_VERSION", "1")
    assert read_settings() == expected


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("BOOTSTRAP_KEY", "k" * 31, "at least 32 characters, got 31"),
        ("LOCK_TIMEOUT_SECONDS", "0", "expected a number above 0"),
        ("LOCK_TIMEOUT_SECONDS", "inf", "expected a number above 0"),
        ("LOCK_TIMEOUT_SECONDS", "soon", "expected a number above 0"),
        ("MAX_JSON_BYTES", "-1", "expected a whole number from 1"),
        ("MAX_PLAN_NODES", "1.5", "expected a whole number from 1"),
        ("MAX_PLAN_DEPTH", "0", "expected a whole number from 1"),
        ("WRITER_THREADS", "0", "expected a whole number from 1"),
        ("SHUTDOWN_SECONDS", "0", "expected a whole number from 1"),
        ("MAX_JSON_BYTES_AT_ONCE", "1000", "at least SERVICE_MAX_JSON_BYTES"),
        ("MAX_ARROW_BYTES_AT_ONCE", "1000", "at least SERVICE_MAX_ARROW_BYTES"),
        ("HEADER_SECONDS", "nan", "expected a number above 0"),
        ("KEY_RATE", "600", "expected `off`, or a rate such as `600/minute`"),
        ("KEY_RATE", "0/minute", "by second, minute or hour"),
        ("FAILURE_RATE", "1/fortnight", "by second, minute or hour"),
        ("HSTS_SECONDS", "-1", "expected a whole number from 0"),
        ("METRICS_ACCOUNTS", ",".join(f"a{n}" for n in range(101)), "at most 100"),
        ("METRICS_ACCOUNTS", '["a"]', "names of at most 100 accounts, separated by commas"),
        ("TRACING", "perhaps", "expected `true` or `false`"),
        ("LOG_LEVEL", "loud", "one of `debug`, `info`, `warning`, `error`, `critical`"),
        ("WEBHOOK_NETWORKS", "10.0.0.1/8", "without host bits"),
        ("WEBHOOK_NETWORKS", "*", "expected addresses"),
        ("SMTP_PORT", "0", "expected a whole number from 1"),
        ("SMTP_FROM", "ledger@agency.example\nBcc: eve@example", "expected a mail address"),
        ("OIDC_ISSUER", "http://login.example", "https"),
        ("OIDC_ISSUER", "http://127.0.0.1.example", "https"),
        ("OIDC_ISSUER", "http://[::1", "https"),
        ("OIDC_ISSUER", "login.example", "https"),
        ("OIDC_ISSUER", "https://", "https"),
        ("OIDC_ISSUER", "https://login.example/?realm=1", "without ?"),
        ("OIDC_ROLES", "steward", "expected a JSON object"),
        ("OIDC_ROLES", "[" * 100_000, "expected a JSON object"),
        ("OIDC_ROLES", '["steward"]', "expected a JSON object"),
        ("OIDC_ROLES", "{}", "expected a JSON object"),
        ("OIDC_CLIENT_ID", "a\nb", "printable ASCII"),
        ("OIDC_CLIENT_ID", "c" * 201, "1 to 200 printable ASCII characters"),
        ("OIDC_CLIENT_SECRET", "a\nb", "printable ASCII"),
        ("OIDC_SCOPE", "profile", "`openid` among them"),
        ("OIDC_SCOPE", "openid  roles", "one blank each"),
        ("OIDC_SCOPE", "openid\n", "one blank each"),
        ("OIDC_NAME", "n" * 61, "1 to 60 characters in one line"),
        ("OIDC_NAME", "a\nb", "in one line"),
        ("PUBLIC_URL", "http://ledger.example", "without a path"),
        ("PUBLIC_URL", "https://ledger.example/", "without a path"),
        ("PUBLIC_URL", "https://ledger.example/pages", "without a path"),
        ("PUBLIC_URL", "https://ledger.example?a", "without a path"),
        ("PUBLIC_URL", "https://me:hunter2@ledger.example", "without a path"),
        ("PUBLIC_URL", "https://ledger.example:port", "without a path"),
        ("PUBLIC_URL", "ledger.example", "without a path"),
        ("PUBLIC_URL", "https://", "without a path"),
        ("TRUSTED_PROXIES", "10.0.0.7,proxy", "expected *, or addresses and networks"),
        ("TRUSTED_PROXIES", "10.0.0.1/8", "without host bits"),
        ("TRUSTED_PROXIES", "*,10.0.0.7", "expected *, or addresses and networks"),
        ("DATABASE_URL", "ledger.db", "expected an SQLAlchemy URL"),
        ("DATABASE_URL", "postgresql+psycopg://host:port/ledger", "expected an SQLAlchemy URL"),
        ("DATABASE_URL", "postgresql://host/ledger", "sqlite://, postgresql+psycopg://"),
        ("DATABASE_URL", "sqlite://", "would lose its entries"),
        ("DATABASE_URL", "sqlite:///:memory:", "would lose its entries"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(f"SERVICE_{variable}", value)
    with pytest.raises(StartupRefused) as refusal:
        read_settings()
    assert f"SERVICE_{variable}: " in str(refusal.value)
    assert expected in str(refusal.value)
    assert "Value error" not in str(refusal.value)


def test_settings_that_do_not_fit_each_other_are_told_without_a_variable_that_there_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVICE_OIDC_AUDIENCE", "ledger")
    with pytest.raises(StartupRefused, match=r"^expected SERVICE_OIDC_ISSUER and SERVICE_OIDC_AUDIENCE together$"):
        read_settings()


@pytest.mark.parametrize("name", ["HIGH_WATER_FILE", "SECRET_FILE"])
@pytest.mark.parametrize("place", ["data/x.secret", "data/deep/x.secret", "data/deep/deeper/x.secret"])
def test_the_mark_is_not_restored_with_the_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, place: str
) -> None:
    monkeypatch.setenv("SERVICE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv(f"SERVICE_{name}", str(tmp_path / place))
    with pytest.raises(StartupRefused, match="outside SERVICE_DATA_DIR"):
        read_settings()
    monkeypatch.setenv("SERVICE_DATABASE_URL", "postgresql+psycopg://host/ledger")  # the directory is not used
    read_settings()


def test_unknown_variables_are_named_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVICE_MAX_JSON_BTES", "SERVICE_PORT", "SERVICE_FROM_A_LATER_VERSION"):
        monkeypatch.setenv(name, "1")
    assert unknown_variables() == {
        "SERVICE_FROM_A_LATER_VERSION": "",
        "SERVICE_MAX_JSON_BTES": "SERVICE_MAX_JSON_BYTES",
        "SERVICE_PORT": "the option --port of serve",
    }


@pytest.mark.parametrize("value", ["*", "10.0.0.7", "10.0.0.0/8, fd00::/8,::1"])
def test_proxies_are_addresses_and_networks(value: str) -> None:
    assert Settings(trusted_proxies=value).trusted_proxies == value


def test_a_role_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_OIDC_ROLES", '{"office": "king"}')
    with pytest.raises(
        StartupRefused, match=r"SERVICE_OIDC_ROLES: .* values of `auditor`, `pipeline`, `approver`, `steward`"
    ):
        read_settings()


@pytest.mark.parametrize(("given", "value"), [("ISSUER", "https://login.example"), ("AUDIENCE", "ledger")])
def test_an_issuer_needs_an_audience(monkeypatch: pytest.MonkeyPatch, given: str, value: str) -> None:
    monkeypatch.setenv(f"SERVICE_OIDC_{given}", value)
    with pytest.raises(StartupRefused, match="SERVICE_OIDC_ISSUER and SERVICE_OIDC_AUDIENCE together"):
        read_settings()


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"CLIENT_ID": "c"}, "SERVICE_OIDC_ISSUER and SERVICE_PUBLIC_URL beside SERVICE_OIDC_CLIENT_ID"),
        ({"CLIENT_ID": "c", "ISSUER": "https://login.example", "AUDIENCE": "a"}, "and SERVICE_PUBLIC_URL beside"),
        ({"CLIENT_SECRET": "hunter2"}, "SERVICE_OIDC_CLIENT_ID beside SERVICE_OIDC_CLIENT_SECRET"),
    ],
)
def test_sign_in_at_an_issuer_needs_its_settings_together(
    monkeypatch: pytest.MonkeyPatch, stated: dict[str, str], expected: str
) -> None:
    for name, value in stated.items():
        monkeypatch.setenv(f"SERVICE_OIDC_{name}", value)
    with pytest.raises(StartupRefused, match=expected) as refusal:
        read_settings()
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("url", ["https://ledger.example", "https://[::1]:8443", "http://localhost:8000"])
def test_the_public_address_is_a_scheme_and_a_host(url: str) -> None:
    assert Settings(public_url=url).public_url == url


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "127.3.2.1:80", "[::1]:8080"])
def test_an_issuer_on_this_machine_may_go_without_encryption(host: str) -> None:
    assert Settings(oidc_issuer=f"http://{host}/realm", oidc_audience="ledger").oidc_issuer == f"http://{host}/realm"


def test_all_faults_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_MAX_PLAN_NODES", "many")
    monkeypatch.setenv("SERVICE_MAX_PLAN_DEPTH", "deep")
    with pytest.raises(StartupRefused, match=r"SERVICE_MAX_PLAN_NODES: .*; SERVICE_MAX_PLAN_DEPTH: "):
        read_settings()


@pytest.mark.parametrize(("helpers", "mebibytes"), [(0, 0), (1, 256 + 1024), (2, 256 + 2 * 1024)])
def test_helpers_take_their_modules_their_work_and_copies_of_a_body(helpers: int, mebibytes: int) -> None:
    assert Settings(helper_processes=helpers, max_json_bytes=2**26).most_memory_of_helpers == mebibytes * 2**20


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_DATABASE_URL", "postgresql+psycopg://ledger:hunter2@host/ledger")
    monkeypatch.setenv("SERVICE_BOOTSTRAP_KEY", "hunter2" * 5)
    monkeypatch.setenv("SERVICE_OIDC_ISSUER", "https://login.example")
    monkeypatch.setenv("SERVICE_OIDC_AUDIENCE", "ledger")
    monkeypatch.setenv("SERVICE_OIDC_CLIENT_ID", "pages")
    monkeypatch.setenv("SERVICE_OIDC_CLIENT_SECRET", "hunter2")
    monkeypatch.setenv("SERVICE_PUBLIC_URL", "https://ledger.example")
    assert "hunter2" not in repr(read_settings())
    told = logged(read_settings())
    assert (told["bootstrap_key"], told["oidc_client_secret"]) == (True, True)
    assert "hunter2" not in str(told)
    monkeypatch.setenv("SERVICE_DATABASE_URL", "mysql://ledger:hunter2@host/ledger")
    monkeypatch.setenv("SERVICE_BOOTSTRAP_KEY", "hunter2")
    with pytest.raises(StartupRefused) as refusal:
        read_settings()
    assert "hunter2" not in str(refusal.value)
    with pytest.raises(ValidationError) as raw:
        Settings()
    assert "hunter2" not in str(raw.value)


def test_settings_do_not_change_after_they_were_read() -> None:
    settings = read_settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.max_plan_nodes = 1  # type: ignore[misc]  # that mypy sees it too is the point


def test_the_memory_that_is_there_is_told() -> None:
    assert 2**28 < available_memory() < 2**50


@pytest.mark.parametrize(
    ("there", "json", "arrow"),
    [(2**37, 2**32, 2**34), (2**33, 2**31, 2**31), (2**30, 2**28, 2**30), (2**20, 2**28, 2**30)],
)
def test_the_rooms_for_bodies_follow_the_machine(
    monkeypatch: pytest.MonkeyPatch, there: int, json: int, arrow: int
) -> None:
    """By default each is at most a quarter of its memory, but holds the largest body."""
    monkeypatch.setattr("service.settings.available_memory", lambda: there)
    assert (Settings().resolved_json_bytes_at_once, Settings().resolved_arrow_bytes_at_once) == (json, arrow)
