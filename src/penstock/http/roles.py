"""Defines the roles of HTTP users, and parses `penstock.http.roles`. Pure code."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

PROPERTY = "penstock.http.roles"
EVERYBODY = "User:*"


class Role(IntEnum):
    """Lists the roles. Each role includes the roles with smaller numbers."""

    VIEW = 1
    """Reads: state of the cluster, topics, records, groups, configs."""
    OPERATE = 2
    """Changes topics, records, groups, replicas and leaders."""
    ADMIN = 3
    """Changes who may do what, and how nodes work: users, ACLs, quotas, configs of brokers."""


def parse_roles(text: str) -> dict[str, Role]:
    """Parses `view=User:ann;operate=User:bob`. Returns the roles by principal. Raises ValueError."""
    found: dict[str, Role] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, _, principal = (part.strip() for part in entry.partition("="))
        kind, _, user = principal.partition(":")
        if name.upper() not in Role.__members__ or not kind or not user:
            raise ValueError(
                f"{PROPERTY} has the entry {entry!r}: write view=User:NAME, operate=User:NAME or admin=User:NAME, "
                "separated by semicolons."
            )
        found[principal] = max(Role[name.upper()], found.get(principal, Role.VIEW))
    return found


class Roles:
    """Finds the role of each principal. Super users are administrators.

    If `penstock.http.roles` has no entry, everybody has every role, and only the ACLs, if there are any, limit a
    caller.
    """

    __slots__ = ("_by_principal", "_super_users")

    def __init__(self, by_principal: Mapping[str, Role], super_users: frozenset[str] = frozenset()) -> None:
        self._by_principal = by_principal
        self._super_users = super_users

    def of(self, principal: str) -> Role | None:
        """Returns the highest role of the principal; None if the principal has no role."""
        if not self._by_principal or principal in self._super_users:
            return Role.ADMIN
        known = (self._by_principal.get(name) for name in (principal, EVERYBODY))
        return max((role for role in known if role is not None), default=None)


EVERYBODY_ADMIN = Roles({})
