"""An OpenID Connect issuer on this machine: a real HTTP server with a discovery document, keys and tokens.

People sign in there too, by the authorization code flow with PKCE: whoever comes is ``person``, at once.
"""

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

AUDIENCE = "the-ledger"
CLIENT = "the ledger's pages"
CALLBACK = "/sign-in/oidc/callback"


def key_of(algorithm: str, number: int = 0) -> Any:
    """Return a private key for an algorithm; equal numbers give equal keys."""
    return _new_key(algorithm, number)


@cache
def _new_key(algorithm: str, number: int) -> Any:
    match algorithm:
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case _:
            return rsa.generate_private_key(65537, 1024 if algorithm == "weak" else 2048)


def published(key_id: str, algorithm: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a key as an issuer publishes it."""
    name = "RS256" if algorithm == "weak" else algorithm
    document: dict[str, Any] = json.loads(get_default_algorithms()[name].to_jwk(key_of(algorithm, number).public_key()))
    return document | {"kid": key_id, "use": "sig", "alg": name} | fields


@dataclass
class LocalIssuer:
    """The published documents and the people's answers, which a test may change, and the requests so far."""

    url: str = ""
    keys: list[dict[str, Any]] = field(default_factory=list)
    discovery: dict[str, Any] = field(default_factory=dict)  # beside, or in place of, what belongs there
    status: int = 200
    raw: bytes | None = None  # in place of the keys
    asked: list[str] = field(default_factory=list)
    person: dict[str, Any] = field(default_factory=dict)  # claims of ID tokens beside the usual ones
    header: dict[str, Any] = field(default_factory=dict)  # arguments of ``token`` for ID tokens
    asks: bool = False  # it shows a page, on which the person continues
    client_secret: str | None = None  # None: a public client
    back: dict[str, str | None] = field(default_factory=dict)  # parameters of the way back; None leaves one out
    tokens: dict[str, Any] = field(default_factory=dict)  # beside, or in place of, the answer with the ID token
    token_status: int | None = None
    token_raw: bytes | None = None
    token_headers: dict[str, str] = field(default_factory=dict)
    token_delay: float = 0.0  # seconds before the answer
    drip: float = 0.0  # seconds between two headers of a document
    headers: dict[str, str] = field(default_factory=dict)  # beside, or in place of, a document's own
    codes: dict[str, dict[str, str]] = field(default_factory=dict)  # the requests whose codes are not redeemed yet
    forms: list[dict[str, str]] = field(default_factory=list)  # those sent to the token endpoint

    def claims(self, role: Any = "auditor", **fields: Any) -> dict[str, Any]:
        """Return the claims of a valid token; a claim that is None is left out."""
        now = int(time.time())
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 600, "roles": role}
        return {name: value for name, value in (usual | fields).items() if value is not None}

    def token(
        self,
        role: Any = "auditor",
        *,
        key_id: str | None = "one",
        algorithm: str = "RS256",
        key: Any = None,
        headers: dict[str, Any] | None = None,
        **fields: Any,
    ) -> str:
        """Return a signed token."""
        named = ({} if key_id is None else {"kid": key_id}) | (headers or {})
        return jwt.encode(self.claims(role, **fields), key or key_of(algorithm), algorithm, headers=named)

    def authorize(self, query: str) -> str:
        """Return where a browser is sent that asked for a code: back, with a code.

        Raises:
            ValueError: the request is not that of a client with PKCE.
        """
        asked = dict(parse_qsl(query, strict_parsing=True))
        expected = {"response_type": "code", "client_id": CLIENT, "code_challenge_method": "S256"}
        if asked | expected != asked or not asked["redirect_uri"].endswith(CALLBACK):
            raise ValueError(asked)
        if "openid" not in asked["scope"].split() or not asked["state"] or not asked["nonce"]:
            raise ValueError(asked)
        code = secrets.token_urlsafe(24)
        self.codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.url} | self.back
        given = {name: value for name, value in back.items() if value is not None}
        return f"{asked['redirect_uri']}?{urlencode(given)}"

    def redeem(self, form: dict[str, str], authorization: str | None) -> tuple[int, dict[str, Any]]:
        """Return the answer of the token endpoint: a code is redeemed once, by the client that has the verifier."""
        self.forms.append(form)
        if self.client_secret is not None:
            pair = f"{quote_plus(CLIENT)}:{quote_plus(self.client_secret)}"
            if authorization != "Basic " + base64.b64encode(pair.encode()).decode() or "client_id" in form:
                return 401, {"error": "invalid_client"}
        elif form.get("client_id") != CLIENT or authorization is not None:
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or (challenge, form.get("redirect_uri")) != (asked["code_challenge"], asked["redirect_uri"]):
            return 400, {"error": "invalid_grant", "error_description": f"<b>{form}</b>"}
        claims = {"aud": CLIENT, "nonce": asked["nonce"], "role": "steward"} | self.person
        answer = {"access_token": "opaque", "token_type": "Bearer", "id_token": self.token(**claims, **self.header)}
        return 200, answer | self.tokens

    def answer(self, path: str) -> bytes | None:
        """Return the body of an answer; None for an unknown address."""
        if path == "/.well-known/openid-configuration":
            own = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
            own |= {f"{name}_endpoint": f"{self.url}/{path}" for name, path in _ENDPOINTS.items()}
            stated = own | {"authorization_response_iss_parameter_supported": True} | self.discovery
            return json.dumps(stated).encode()
        if path == "/keys":
            return json.dumps({"keys": self.keys}).encode() if self.raw is None else self.raw
        return None


_ENDPOINTS = {"authorization": "authorize", "token": "token"}


@contextlib.contextmanager
def local_issuer(host: str = "127.0.0.1") -> Iterator[LocalIssuer]:
    """Run an issuer for the block; its first key has the id one.

    Browsers take ``localhost`` for another site than 127.0.0.1.
    """
    issuer = LocalIssuer(keys=[published("one", "RS256")])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            issuer.asked.append(parts.path)
            if parts.path == "/authorize":
                back = issuer.authorize(parts.query)
                if issuer.asks:
                    shown = f'<!doctype html><title>Agency login</title><a href="{escape(back)}">Continue as ann</a>'
                    self._answer(200, shown.encode(), Content_Type="text/html")
                else:
                    self._answer(302, b"", Location=back)
                return
            body = issuer.answer(self.path)
            if issuer.drip:
                self._drip()
            else:
                self._answer(404 if body is None else issuer.status, body or b"", **issuer.headers)

        def _drip(self) -> None:
            """Answer with many headers, none of which is late."""
            with contextlib.suppress(ConnectionError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                for _ in range(200):
                    self.wfile.write(b"X: y\r\n")
                    time.sleep(issuer.drip)

        def do_POST(self) -> None:
            issuer.asked.append(self.path)
            sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, answer = issuer.redeem(dict(parse_qsl(sent)), self.headers["Authorization"])
            time.sleep(issuer.token_delay)
            body = json.dumps(answer).encode() if issuer.token_raw is None else issuer.token_raw
            with contextlib.suppress(ConnectionError):  # a client may have lost patience
                self._answer(issuer.token_status or status, body, **issuer.token_headers)

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://{host}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
