"""The location of a ledger's database, as the operator may see it: without passwords."""

import re
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from sqlalchemy import URL

_SECRETS = ("password", "sslpassword", "oauth_client_secret")  # options of libpq that a URL's query may hold
_OPTIONS = {"host": "host", "port": "port", "database": "dbname", "user": "user"}  # options that override the URL


class DatabaseLocation(NamedTuple):
    """The name of a database, and the texts that are never shown."""

    name: str
    hidden: tuple[str, ...]

    def message(self, detail: str, reason: str, advice: str) -> str:
        """Return one line for the terminal and the log: what failed, where, the driver's reason, and the remedy."""
        shown = " ".join(reason.split())
        for secret in self.hidden:
            for form in (secret, quote(secret, safe=""), quote_plus(secret)):
                shown = re.sub(re.escape(form), "***", shown, flags=re.IGNORECASE)
        return "; ".join(filter(None, (": ".join(filter(None, (detail, self.name, shown))), advice)))


def place_of_file(path: object) -> DatabaseLocation:
    """Return the place of an SQLite database."""
    return DatabaseLocation(f"the file {path}", ())


def place_of(url: URL) -> DatabaseLocation:
    """Return the place that a URL names."""
    if url.get_backend_name() == "sqlite":
        return place_of_file(url.database)
    parts = {"host": url.host, "port": url.port, "database": url.database, "user": url.username}
    options = {name: ",".join([value] if isinstance(value, str) else value) for name, value in url.query.items()}
    parts |= {name: options[given] for name, given in _OPTIONS.items() if given in options}
    secrets = [url.password, *(value for name in _SECRETS for value in url.normalized_query.get(name, ()))]
    shown = {str(value) for value in parts.values()}
    named = ", ".join(f"{name} {value}" if value else f"{name} by default" for name, value in parts.items())
    # A password that equals the user's name must not be revealed by that name. The longest text is hidden first,
    # because it may contain another.
    return DatabaseLocation(
        f"PostgreSQL at {named}", tuple(sorted({secret for secret in secrets if secret} - shown, key=len, reverse=True))
    )
