"""Mail about messages: plain text, through the operator's SMTP server."""

import smtplib
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any

from service.errors import StartupRefused
from service.notifications.http_delivery import Answer, printable, trusted
from service.settings import Settings

_STEP = 10.0  # seconds for each step
_SUBJECTS = {
    "release.proposed": "{account}: a release waits for approval",
    "release.approved": "{account}: a release was approved",
    "release.rejected": "{account}: a release was rejected",
    "release.expired": "{account}: a held release expired",
    "release.refused": "{account}: a release did not fit the budget",
    "change.proposed": "{account}: a change of the account waits for approval",
    "change.approved": "{account}: a change of the account was approved",
    "change.rejected": "{account}: a change of the account was rejected",
    "budget.below": "{account}: less than {below} of the budget is left",
    "ledger.stopped": "The ledger writes nothing any more",
    "ledger.acknowledged": "An operator accepted an older ledger",
    "test": "A test of notifications",
}
_NAMES = {
    "account": "Account", "principal": "Principal", "proposal": "Proposed in entry", "state": "State",
    "reason": "Reason", "url": "Page",
}  # fmt: skip


class Mailer:
    """The sender of mail through one SMTP server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._password = password_of(settings)

    def send(self, recipients: Sequence[str], message: Mapping[str, Any]) -> Answer:
        """Send a message to its recipients; it was delivered where the server took it for all of them."""
        mail = written(message, str(self._settings.smtp_from), recipients)
        try:
            with self._connected() as server:
                refused = server.send_message(mail)
        except (OSError, smtplib.SMTPException) as error:  # its text may quote what the server said: only the code
            code = error.smtp_code if isinstance(error, smtplib.SMTPResponseException) else None
            return Answer(code, f"the mail server did not take it: {type(error).__name__}", None)
        if refused:
            return Answer(250, None, f"not taken for {len(refused)} of {len(recipients)} recipients")
        return Answer(250, None, None)

    def _connected(self) -> smtplib.SMTP:
        host, port = str(self._settings.smtp_host), self._settings.smtp_port
        if self._settings.smtp_tls == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=_STEP, context=trusted())
        else:
            server = smtplib.SMTP(host, port, timeout=_STEP)
        try:
            if self._settings.smtp_tls == "starttls":
                server.starttls(context=trusted())
            if self._settings.smtp_user is not None and self._password is not None:
                server.login(self._settings.smtp_user, self._password)
        except BaseException:
            server.close()
            raise
        return server


def password_of(settings: Settings) -> str | None:
    """Return the password for the SMTP server; None where it takes none.

    Raises:
        StartupRefused: the file with the password cannot be read.
    """
    if settings.smtp_password_file is not None:
        try:
            return settings.smtp_password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise StartupRefused("SERVICE_SMTP_PASSWORD_FILE cannot be read") from None
    return None if settings.smtp_password is None else settings.smtp_password.get_secret_value()


def written(message: Mapping[str, Any], sender: str, recipients: Sequence[str]) -> EmailMessage:
    """Return the mail about a message."""
    data = message["data"]
    mail = EmailMessage()
    mail["Subject"] = _SUBJECTS[message["type"]].format_map(data)
    mail["From"], mail["To"] = sender, ", ".join(recipients)
    mail["Date"] = formatdate()
    mail["Message-ID"] = f"<{message['id']}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("\n".join(_lines(message)) + "\n")
    return mail


def _lines(message: Mapping[str, Any]) -> list[str]:
    data = message["data"]
    shown = {_NAMES[name]: data[name] for name in _NAMES if data.get(name) is not None}
    if "release" in data:
        release = data["release"]
        shown["Release"] = release["name"] + ("" if release["id"] is None else f" ({release['id']})")
    for name, words in (
        *(("refusal", "Did not fit"), ("change", "Change")),
        *(("remaining", "Remaining"), ("budget", "Budget")),
    ):
        if name in data:
            shown[words] = _words(data[name]) or "an account above"
    if data.get("last_of_hour"):
        others = "others about any account" if data.get("of_all_accounts") else "others like this"
        shown["More"] = f"the journal has them; {others} are not sent within the hour"
    if data.get("below") is not None:
        shown["Threshold"] = f"{data['below']} of the budget"
    # Names may hold what a client shows as the end of a line, so that a name could add lines such as another page.
    return [printable(f"{name}: {value}") for name, value in {"Time": message["timestamp"], **shown}.items()]


def _words(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{name} {_words(part)}" for name, part in value.items() if part is not None)
        case list():
            return "; ".join(map(_words, value))
    return str(value)
