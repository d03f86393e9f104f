"""Authentication of bearer keys and of an issuer's tokens, with three roles, before any other work on a request."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http import problems
from service.api.http.addresses import is_contract
from service.api.identity.oidc import Tokens, is_token
from service.api.identity.throttle import GIVEN_UP, PAGE, Throttle
from service.errors import Forbidden, ServiceError, TooManyRequests, Unauthenticated
from service.ledger.access.authentication import Principal, authenticate
from service.ledger.access.key_records import Role
from service.ledger.access.key_usage import KeyUsage
from service.ledger.storage import clock
from service.ledger.storage.database import Database
from service.ledger.storage.secret import Secret

SIGNED_IN = "signed_in"  # in the state of a request that a page makes in process: whom the issuer vouched for
SIGNED_IN_UNTIL = "signed_in_until"  # beside it: seconds since 1970
AGAIN = "again"  # in the state of a request: the function that authenticates its caller again
_PAUSE = 1.0  # seconds that a request waits when its key's clients hang up too often
_THREADS = 8  # a separate pool: authentication goes on while all other threads wait


class Authentication:
    """ASGI middleware that lets no request below /v1 be routed, parsed or validated without a valid key."""

    def __init__(
        self,
        app: ASGIApp,
        database: Database,
        secret: Secret,
        uses: KeyUsage,
        tokens: Tokens | None,
        throttle: Throttle,
    ) -> None:
        self.app, self.database, self.secret, self.uses = app, database, secret, uses
        self.tokens, self.throttle = tokens, throttle
        self.threads = ThreadPoolExecutor(_THREADS, "authentication")
        self.suspects = ThreadPoolExecutor(1, "suspects")  # one at a time, however many invalid keys come
        # An SQLite lookup is answered from memory, in a tenth of the time that a switch to a thread takes.
        self.inline = database.kind == "sqlite"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 429, or pass the request on with its principal."""
        if scope["type"] == "http" and is_contract(scope["path"]):
            try:
                await self._admit(scope)
            except ServiceError as error:
                await problems.of_error(error, scope["path"])(scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        """Find the principal of a request and apply the rate limits."""
        address, signed_in = (scope.get("client") or ("",))[0], scope.get("state", {}).get(SIGNED_IN)
        # No header contains a line break, so no bearer is counted as a person who is signed in.
        token = _token(scope) if signed_in is None else f"\n{signed_in.name}"
        try:
            self.throttle.check_abandoned(token)
        except TooManyRequests:
            await asyncio.sleep(_PAUSE)  # an earlier answer would only bring the next attempt sooner
            raise
        threads = self.suspects if self.throttle.is_suspect(address, token) else self.threads
        try:
            _require_token(scope, token)
            principal = signed_in or await self._principal(token, threads)
        except Unauthenticated:
            self.throttle.count_invalid(address)
            raise
        state = scope.setdefault("state", {})
        state[AGAIN] = partial(self._again, scope, token)
        state["principal"], state[GIVEN_UP] = principal, partial(self.throttle.count_abandoned, token)
        visit = state.get(PAGE, state)
        if not visit.get("counted"):  # a page counts as one request, with all its calls
            self.throttle.count_valid(token, principal.key_id or principal.name)
            visit["counted"] = True

    async def _again(self, scope: Scope, token: str) -> Principal:
        """Return the caller of a long request once more, as far as it still has its rights.

        Raises:
            Unauthenticated: the key, the token or the session has ended.
        """
        signed_in: Principal | None = scope["state"].get(SIGNED_IN)
        if signed_in is None:
            return await self._principal(token, self.threads)
        if time.time() >= scope["state"][SIGNED_IN_UNTIL]:
            raise Unauthenticated("the session has ended")
        return signed_in

    async def _principal(self, token: str, threads: ThreadPoolExecutor) -> Principal:
        if self.tokens is not None and is_token(token):
            return await self.tokens.principal(token)
        if self.inline:
            return self._key_principal(token)
        return await asyncio.get_running_loop().run_in_executor(threads, self._key_principal, token)

    def _key_principal(self, key: str) -> Principal:
        now = clock.now()
        principal = authenticate(self.database, self.secret, key, now)
        if principal is None:
            raise Unauthenticated("the key is unknown, expired or revoked")
        if principal.key_id is not None:
            self.uses.note(principal.key_id, now)
        return principal


def _token(scope: Scope) -> str:
    """Return the bearer token; empty where there is none, or more than one."""
    headers = _authorization(scope)
    scheme, _, token = headers[0].decode("latin-1").partition(" ") if len(headers) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else ""


def _authorization(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"authorization"]


def _require_token(scope: Scope, token: str) -> None:
    """Require a bearer token.

    Raises:
        Unauthenticated: there is none. No value is repeated, since it may be nearly a key.
    """
    if not token:
        headers = _authorization(scope)
        got = {0: "none", 1: "one of another form"}.get(len(headers), f"{len(headers)} such headers")
        raise Unauthenticated(f"expected exactly one header Authorization: Bearer <key>, got {got}")


async def current_principal(request: Request) -> Principal:
    """Return the principal that the middleware admitted; async, since FastAPI would otherwise use a thread."""
    principal: Principal = request.state.principal
    return principal


CurrentPrincipal = Annotated[Principal, Depends(current_principal)]


def require(principal: Principal, role: Role, account: str | None = None) -> None:
    """Refuse a key whose role is too low, or that is limited to other accounts.

    Args:
        principal: the caller.
        role: the least role that the operation needs.
        account: the account that the operation touches.

    Raises:
        Forbidden: the key lacks the role, or does not reach the account.
    """
    if not principal.may_act_as(role):
        raise Forbidden(f"expected a key with the role {role}, got {principal.role}")
    if account is not None and not principal.may_use(account):
        raise Forbidden("the key is limited to other accounts; use a key that reaches this account")
