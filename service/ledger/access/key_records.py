"""The public records of keys, and the rights of their roles."""

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal["auditor", "pipeline", "approver", "steward"]
ROLES: tuple[Role, ...] = get_args(Role)

FIRST_PRINCIPAL = "first-steward"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The parts of a key that may be shown; moments are as the clock writes them."""

    id: str
    name: str  # the principal
    role: Role
    accounts: tuple[str, ...] | None  # None: all
    created_at: str
    expires_at: str | None
    revoked_at: str | None = None
    created_by: str | None = None  # the principal that made it; None: the operator, at a start or by a command
    rotated_from: str | None = None  # the id of the key that it replaces
    last_used_at: str | None = None  # to the hour
    rotated_to: str | None = None  # the id of the key that replaced it
    sealed: bool = True  # False: the key is refused: its row is altered, or older than seals and not adopted


def includes(role: Role, other: Role) -> bool:
    """Return whether a role includes the rights of another.

    Stewards have all rights, and all roles may read. Pipelines and approvers exclude each other: who registers releases
    does not approve any.
    """
    return role in (other, "steward") or other == "auditor"
