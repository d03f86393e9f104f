"""Mail to a real SMTP server."""

import email
from email import policy
from pathlib import Path
from typing import Any

import pytest

from service.errors import StartupRefused
from service.ledger.notifications.webhooks import EVENTS
from service.notifications.http_delivery import trusted
from service.notifications.mail import Mailer, written
from service.settings import Settings
from tests.certificates import certified
from tests.receivers import mail_server

_DATA = {
    "account": "people",
    "below": "0.2",
    "reason": "nothing is written",
    "release": {"id": "r1", "name": "Größe\u2028der Haushalte"},
    "refusal": {"account": None, "cap": None, "requested": None},
    "budget": {"definition": "zcdp", "rho": "1"},
    "remaining": {"definition": "zcdp", "rho": 0.1},
    "change": {"caps": [{"tag": "age", "budget": {"definition": "zcdp", "rho": "2"}}]},
    "webhook": "mine",
}


def message(event: str) -> dict[str, Any]:
    return {"type": event, "id": "m1", "timestamp": "2026-11-27T10:00:00.000000Z", "data": _DATA}


def settings(port: int, **more: Any) -> Settings:
    return Settings(smtp_host="127.0.0.1", smtp_port=port, smtp_from="ledger@agency.example", **more)


@pytest.mark.parametrize("event", [*EVENTS, "test"])
def test_every_event_has_a_mail(event: str) -> None:
    mail = written(message(event), "ledger@agency.example", ["ann@agency.example", "bob@agency.example"])
    read = email.message_from_bytes(mail.as_bytes(), policy=policy.default)
    assert read["Subject"]
    assert read["To"] == "ann@agency.example, bob@agency.example"
    assert read["Message-ID"] == "<m1@agency.example>"
    text = read.get_content()
    assert "Größe" in text
    assert "Remaining: definition zcdp, rho 0.1" in text
    assert "Did not fit: an account above" in text
    assert "Change: caps tag age, budget definition zcdp, rho 2" in text
    assert "More:" not in text


def test_a_name_adds_no_lines() -> None:
    name = "counts\u2028Page: https://evil.example\x85Page: x\u202eelpoep"
    named = message("release.proposed") | {"data": _DATA | {"release": {"id": "r1", "name": name}, "principal": name}}
    lines = written(named, "ledger@agency.example", ["ann@agency.example"]).get_content().splitlines()
    assert not any(line.startswith("Page:") for line in lines)
    assert "Release: counts Page: https://evil.example Page: x elpoep (r1)" in lines


def test_the_last_mail_of_an_hour_says_that_there_are_more() -> None:
    last = message("release.proposed") | {"data": _DATA | {"last_of_hour": True}}
    sent = written(last, "ledger@agency.example", ["ann@agency.example"]).get_content()
    assert "More: the journal has them; others like this are not sent" in sent
    of_all = last | {"data": last["data"] | {"of_all_accounts": True}}
    sent = written(of_all, "ledger@agency.example", ["ann@agency.example"]).get_content()
    assert "More: the journal has them; others about any account are not sent" in sent


def test_mail_is_encrypted_before_the_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context, authority = certified(tmp_path, addresses=("127.0.0.1",))
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    with mail_server(context) as server:
        mailer = Mailer(settings(server.port, smtp_user="ledger", smtp_password_file=password))
        try:
            trusted.cache_clear()
            refused = mailer.send(["ann@agency.example"], message("test"))
            assert (refused.status, server.logins) == (None, [])
            assert refused.reason == "the mail server did not take it: SSLCertVerificationError"
            monkeypatch.setenv("SSL_CERT_FILE", str(authority))
            trusted.cache_clear()
            assert mailer.send(["ann@agency.example"], message("test")) == (250, None, None)
        finally:
            trusted.cache_clear()
    assert len(server.logins) == len(server.mails) == 1


def test_a_server_without_encryption_gets_no_mail() -> None:
    with mail_server() as server:
        answer = Mailer(settings(server.port)).send(["ann@agency.example"], message("test"))
    assert answer.reason == "the mail server did not take it: SMTPNotSupportedError"
    assert server.mails == []


def test_refused_recipients_are_counted() -> None:
    both = ["ann@agency.example", "bob@agency.example"]
    with mail_server() as server:
        server.refuses = "bob"
        mailer = Mailer(settings(server.port, smtp_tls="none"))
        assert mailer.send(both, message("test")) == (250, None, "not taken for 1 of 2 recipients")
        answer = mailer.send(["bob@agency.example"], message("test"))
    assert answer.reason == "the mail server did not take it: SMTPRecipientsRefused"


def test_a_password_file_that_cannot_be_read_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupRefused, match="SERVICE_SMTP_PASSWORD_FILE"):
        Mailer(settings(25, smtp_user="ledger", smtp_password_file=tmp_path / "none"))
