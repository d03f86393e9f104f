"""Tokens of an OpenID Connect issuer: principals and roles from their claims.

A caller sends an access token with each request. A person who signs in to the web pages gets an ID token, which only
the service sees.

A token's principal is named ``oidc:`` followed by the claim that names the person. No API key has such a name, so two
persons are two principals whichever way each of them signs in.
"""

import hmac
from typing import Any

import jwt

from service.api.identity.issuer import ALGORITHMS, Issuer
from service.errors import Forbidden, Unauthenticated
from service.ledger.access.authentication import Principal
from service.ledger.access.key_records import Role, includes
from service.ledger.access.keys import ISSUED, is_distinct_name
from service.ledger.storage import clock
from service.settings import Settings

_LONGEST = 16_384  # characters of a token
_LONGEST_NAME = 200  # characters of a principal's name, as of a key's
_LEEWAY = 30.0  # seconds that two clocks may differ
_EVERYTHING = "*"  # in the accounts claim; no account has such a name
_ACCESS_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})  # others are such as those of a logout
_ID_TYPES = frozenset({"", "jwt"})
_BEGIN = "eyJ"  # base64url of the beginning of a JSON object, {"

_REASONS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token is not valid yet",
    jwt.InvalidIssuerError: "the token was issued by another issuer",
    jwt.InvalidAudienceError: "the token was issued for another audience",
    jwt.MissingRequiredClaimError: "expected a token with the claims exp, iss and aud",
    jwt.InvalidSignatureError: "the token's signature is invalid",
}


def is_token(text: str) -> bool:
    """Return True where a bearer's text has the shape of a signed token; the service's own keys do not have it."""
    return text.startswith(_BEGIN) and text.count(".") == 2


class Tokens:
    """Verification of the configured issuer's tokens."""

    def __init__(self, settings: Settings, issuer: Issuer) -> None:
        self.settings, self.issuer = settings, issuer

    @classmethod
    def configured(cls, settings: Settings) -> "Tokens | None":
        """Return the verifier of the settings; None where no issuer is configured."""
        return None if settings.oidc_issuer is None else cls(settings, Issuer(settings.oidc_issuer))

    @property
    def configuration(self) -> tuple[Any, ...]:
        """The settings that give a token's claims their meaning."""
        settings = self.settings
        roles = sorted(settings.oidc_roles.items())
        claims = (settings.oidc_role_claim, settings.oidc_accounts_claim, settings.oidc_principal_claim)
        return (settings.oidc_audience, roles, *claims)

    async def principal(self, token: str) -> Principal:
        """Return the principal of a token.

        Raises:
            Unauthenticated: it is not a valid token of the issuer for this service.
            Forbidden: the token is valid, but has no role of this service, or names no principal.
            Unavailable: its key is not cached, and the issuer does not answer.
        """
        return self._principal(await self._verified(token, str(self.settings.oidc_audience), _ACCESS_TYPES))

    async def person(self, token: str, client: str, nonce: str) -> tuple[Principal, int]:
        """Return the principal of an ID token, and the second since 1970 in which the token expires.

        Args:
            token: the ID token, from the issuer's token endpoint.
            client: the id of this service at the issuer.
            nonce: the text that the service made for this sign-in.

        Raises:
            Unauthenticated: it is not a valid token of the issuer for this client and this sign-in.
            Forbidden: the token is valid, but has no role of this service, or names no principal.
            Unavailable: its key is not cached, and the issuer does not answer.
        """
        claims = await self._verified(token, client, _ID_TYPES)
        if claims["exp"] <= clock.seconds():  # within the tolerance, but no session could begin
            raise Unauthenticated(_REASONS[jwt.ExpiredSignatureError])
        stated = claims.get("nonce")
        if not isinstance(stated, str) or not hmac.compare_digest(stated.encode(errors="replace"), nonce.encode()):
            raise Unauthenticated("the token was issued for another sign-in")
        audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        party = claims.get("azp", client if len(audience) == 1 else None)
        if party != client or not {client, self.settings.oidc_audience}.issuperset(audience):
            raise Unauthenticated("the token was issued for another client too")
        return self._principal(claims), int(claims["exp"])

    async def _verified(self, token: str, audience: str, types: frozenset[str]) -> dict[str, Any]:
        """Return the claims of a token of the issuer for an audience, whose signature and times are valid."""
        key_id, algorithm = _header(token, types)
        key = await self.issuer.key(key_id, algorithm)
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=audience,
                issuer=self.issuer.url,
                leeway=_LEEWAY,
                options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
            )
            if type(claims["exp"]) not in (int, float):  # PyJWT takes the text of a number too
                raise jwt.DecodeError
            # PyJWT uses the system's clock, which may have been set back
            if clock.seconds() > int(claims["exp"]) + _LEEWAY:
                raise jwt.ExpiredSignatureError
        except (jwt.PyJWTError, OverflowError, TypeError, ValueError) as error:
            raise Unauthenticated(_REASONS.get(type(error), "the token is not valid")) from None
        return claims

    def _principal(self, claims: dict[str, Any]) -> Principal:
        return Principal(None, self._name(claims), self._role(claims), self._accounts(claims))

    def _name(self, claims: dict[str, Any]) -> str:
        name = _claim(claims, self.settings.oidc_principal_claim)
        if not isinstance(name, str) or not name or not is_distinct_name(name):
            raise Forbidden(
                "expected a token whose principal claim is printable text (NFKC) without leading, trailing or double"
                " spaces"
            )
        if len(ISSUED + name) > _LONGEST_NAME:
            raise Forbidden(
                f"expected a token whose principal claim has at most {_LONGEST_NAME - len(ISSUED)} characters"
            )
        return ISSUED + name

    def _role(self, claims: dict[str, Any]) -> Role:
        values = _texts(_claim(claims, self.settings.oidc_role_claim))
        roles = {self.settings.oidc_roles[value] for value in values or () if value in self.settings.oidc_roles}
        if not roles:
            raise Forbidden("expected a token whose role claim contains a role of this service")
        greatest = [role for role in roles if all(includes(role, other) for other in roles)]
        if not greatest:
            raise Forbidden(
                "expected a token with one of the roles pipeline and approver: who registers does not approve"
            )
        return greatest[0]

    def _accounts(self, claims: dict[str, Any]) -> frozenset[str] | None:
        if self.settings.oidc_accounts_claim is None:
            return None
        values = _texts(_claim(claims, self.settings.oidc_accounts_claim))
        if values is None:
            raise Forbidden("expected a token whose accounts claim is the name of an account or a list of names")
        if _EVERYTHING in values:
            return None
        # No account has another name, and the database does not accept some of them.
        return frozenset(name for name in values if name.isascii() and name.isprintable())


def _header(token: str, types: frozenset[str]) -> tuple[str, str]:
    """Return the key id and the algorithm of an unverified token."""
    if len(token) > _LONGEST:
        raise Unauthenticated(f"expected a token of at most {_LONGEST} characters")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, TypeError, ValueError):
        raise Unauthenticated("expected a signed JWT") from None
    key_id, algorithm, kind = header.get("kid"), header.get("alg"), header.get("typ", "")
    if algorithm not in ALGORITHMS:
        raise Unauthenticated(f"expected a token signed with one of {', '.join(ALGORITHMS)}")
    if not isinstance(kind, str) or kind.lower() not in types or "crit" in header or "b64" in header:
        expected = "an ID token" if types is _ID_TYPES else "an access token"
        raise Unauthenticated(f"expected a JWT without extensions that is {expected}")
    if not isinstance(key_id, str):
        raise Unauthenticated("expected a token that names its key (kid)")
    return key_id, str(algorithm)


def _claim(claims: dict[str, Any], name: str) -> Any:
    """Return a claim by its name, or by a JSON pointer such as /realm_access/roles; None where it is absent."""
    value: Any = claims
    for step in name[1:].split("/") if name.startswith("/") else [name]:
        key = step.replace("~1", "/").replace("~0", "~") if name.startswith("/") else step
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _texts(value: Any) -> list[str] | None:
    """Return one text or a list of texts as a list; None for anything else."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        return None
    return values
