"""Keys as they may be shown, and what their roles may do."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["auditor", "pipeline", "steward"]
ROLES: tuple[Role, ...] = ("auditor", "pipeline", "steward")  # each may do all that those before it may

FIRST_PRINCIPAL = "first-steward"


@dataclass(frozen=True)
class KeyRecord:
    """What may be shown of a key; moments as the clock writes them."""

    id: str
    name: str  # the principal
    role: Role
    accounts: tuple[str, ...] | None  # None: all
    created_at: str
    expires_at: str | None
    revoked_at: str | None = None
    created_by: str | None = None  # the principal; None: the operator, at a start or by a command
    rotated_from: str | None = None  # the id of the key that it takes the place of
    last_used_at: str | None = None  # to the hour
    rotated_to: str | None = None  # the id of the key that took its place
    sealed: bool = True  # it serves nobody otherwise: it is older than seals, and was not adopted


def includes(role: Role, other: Role) -> bool:
    """Whether a role may do all that another may."""
    return ROLES.index(role) >= ROLES.index(other)
