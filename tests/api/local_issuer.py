"""An OpenID Connect issuer on this machine: a real HTTP server with a discovery document, keys and tokens."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

AUDIENCE = "the-ledger"


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
    """The published documents, which a test may change, and the number of requests to each address."""

    url: str = ""
    keys: list[dict[str, Any]] = field(default_factory=list)
    discovery: dict[str, Any] = field(default_factory=dict)  # beside, or in place of, what belongs there
    status: int = 200
    raw: bytes | None = None  # in place of the keys
    asked: list[str] = field(default_factory=list)

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

    def answer(self, path: str) -> bytes | None:
        """Return the body of an answer; None for an unknown address."""
        if path == "/.well-known/openid-configuration":
            return json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | self.discovery).encode()
        if path == "/keys":
            return json.dumps({"keys": self.keys}).encode() if self.raw is None else self.raw
        return None


@contextlib.contextmanager
def local_issuer() -> Iterator[LocalIssuer]:
    """Run an issuer for the block; its first key has the id one."""
    issuer = LocalIssuer(keys=[published("one", "RS256")])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            body = issuer.answer(self.path)
            self.send_response(404 if body is None else issuer.status)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
