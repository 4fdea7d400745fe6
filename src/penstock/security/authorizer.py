"""Decides which operations a principal may do, with the rules of Kafka's StandardAuthorizer.

1. A super user may do everything.
2. An ACL applies if its resource pattern, its principal and its host match. A pattern is a literal name, the wildcard
   `*`, or a prefix. All spellings of an IP address match.
3. A matching DENY wins over every ALLOW, even if the pattern of the ALLOW is more specific.
4. READ, WRITE, DELETE and ALTER imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS. ALL covers every operation. A
   DENY covers only its own operation; a DENY of ALL covers every operation.
5. A resource without any ACL is closed to all principals, unless `allow.everyone.if.no.acl.found` is set.

The index changes with each ACL that is added or removed. A check takes one lookup for the name, one for the wildcard,
and one for each different length of the prefixes in ACLs. Results are cached until the ACLs change, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from penstock.security.hosts import canonical_host
from penstock.security.vocabulary import (
    SUPPORTED_OPERATIONS,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclResource,
    Operation,
    PatternType,
    Permission,
)

#: Maximum number of cached results. When there are more, the cache is emptied.
MAX_ANSWERS = 20_000
#: Longest name whose result is cached: topics have at most 249 characters, other names may have thousands.
MAX_KEPT_NAME = 250

_IMPLYING: Mapping[Operation, frozenset[int]] = {
    operation: frozenset({operation, Operation.ALL}) for operation in Operation
} | {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}),
}


class Acl(Protocol):
    """Holds one ACL of the metadata image."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def pattern_type(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


#: The ACLs of one resource pattern: principal → (host, operation, is a DENY).
_Entries = dict[str, list[tuple[str, int, bool]]]


class Authorizer:
    """Decides what principals may do. `change` adds and removes its ACLs."""

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        *,
        super_users: frozenset[str] = frozenset(),
        allow_without_acls: bool = False,
    ) -> None:
        self._super_users = super_users
        self._allow_without_acls = allow_without_acls
        self._literal: dict[tuple[int, str], _Entries] = {}
        self._prefixed: dict[tuple[int, str], _Entries] = {}
        self._prefix_lengths: dict[int, list[int]] = {}
        self._answers: dict[tuple[str, str, int, int, str], bool] = {}
        self._answers_for_any: dict[tuple[str, str, int, int], bool] = {}
        self.change(acls, ())

    def change(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """Adds and removes ACLs. The cost depends on the number of changed ACLs, not on the number of all ACLs."""
        for acl in added:
            patterns, key, entry = self._place(acl)
            patterns.setdefault(key, {}).setdefault(acl.principal, []).append(entry)
        for acl in removed:
            patterns, key, entry = self._place(acl)
            entries = patterns[key]
            entries[acl.principal].remove(entry)
            if not entries[acl.principal]:
                del entries[acl.principal]
            if not entries:
                del patterns[key]
        lengths: dict[int, set[int]] = {}
        for resource, prefix in self._prefixed:
            lengths.setdefault(resource, set()).add(len(prefix))
        self._prefix_lengths = {resource: sorted(found) for resource, found in lengths.items()}
        self._answers.clear()
        self._answers_for_any.clear()

    def _place(self, acl: Acl) -> tuple[dict[tuple[int, str], _Entries], tuple[int, str], tuple[str, int, bool]]:
        patterns = self._prefixed if acl.pattern_type == PatternType.PREFIXED else self._literal
        entry = (canonical_host(acl.host), acl.operation, acl.permission_type == Permission.DENY)
        return patterns, (acl.resource_type, acl.resource_name), entry

    def allows(self, principal: str, host: str, operation: Operation, resource: AclResource, name: str) -> bool:
        """Returns True if the principal, connected from `host`, may do the operation on the named resource."""
        if len(name) > MAX_KEPT_NAME:
            return self._decide(principal, host, operation, resource, name)
        question = (principal, host, operation, resource, name)
        answer = self._answers.get(question)
        if answer is None:
            answer = self._decide(principal, host, operation, resource, name)
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            self._answers[question] = answer
        return answer

    def allows_any(self, principal: str, host: str, operation: Operation, resource: AclResource) -> bool:
        """Returns True if the principal may do the operation on at least one resource of this kind.

        As in Kafka, only ACLs with this operation or ALL are examined. An ALLOW for a name or a prefix is ignored if a
        DENY covers all names that the ALLOW covers.
        """
        if self.allows(principal, host, operation, resource, "hardcode"):  # Kafka asks for this name
            return True
        question = (principal, host, operation, resource)
        answer = self._answers_for_any.get(question)
        if answer is None:
            if len(self._answers_for_any) >= MAX_ANSWERS:
                self._answers_for_any.clear()
            answer = self._answers_for_any[question] = self._decide_any(principal, host, operation, resource)
        return answer

    def _decide_any(self, principal: str, host: str, operation: Operation, resource: AclResource) -> bool:
        allowed_literal, denied_literal = self._patterns(self._literal, principal, host, operation, resource)
        allowed_prefixed, denied_prefixed = self._patterns(self._prefixed, principal, host, operation, resource)
        if WILDCARD in denied_literal:
            return False
        if WILDCARD in allowed_literal:
            return True
        lengths = {len(prefix) for prefix in denied_prefixed}
        return any(
            not any(name[:length] in denied_prefixed for length in lengths)
            for name in (allowed_literal - denied_literal) | allowed_prefixed
        )

    def operations(self, principal: str, host: str, resource: AclResource, name: str) -> int:
        """Returns the operations that the principal may do on the resource, as Kafka's bit field."""
        bits = 0
        for operation in SUPPORTED_OPERATIONS[resource]:
            if self.allows(principal, host, operation, resource, name):
                bits |= 1 << operation
        return bits

    def _decide(self, principal: str, host: str, operation: Operation, resource: AclResource, name: str) -> bool:
        if principal in self._super_users:
            return True
        implying = _IMPLYING[operation]
        host = canonical_host(host)
        has_acls = allowed = False
        for entries in self._matching(resource, name):
            has_acls = True
            for acl_host, acl_operation, denies in _of_principal(entries, principal):
                if acl_host not in (WILDCARD, host):
                    continue
                if denies:
                    if acl_operation in (operation, Operation.ALL):
                        return False
                elif acl_operation in implying:
                    allowed = True
        return allowed or (not has_acls and self._allow_without_acls)

    def _matching(self, resource: AclResource, name: str) -> Iterator[_Entries]:
        """Yields the ACLs of each resource pattern that covers the resource's name."""
        for literal in (name, WILDCARD) if name != WILDCARD else (WILDCARD,):
            entries = self._literal.get((resource, literal))
            if entries is not None:
                yield entries
        for length in self._prefix_lengths.get(resource, ()):
            if length > len(name):
                return
            entries = self._prefixed.get((resource, name[:length]))
            if entries is not None:
                yield entries

    @staticmethod
    def _patterns(
        patterns: dict[tuple[int, str], _Entries],
        principal: str,
        host: str,
        operation: Operation,
        resource: AclResource,
    ) -> tuple[set[str], set[str]]:
        """Returns two sets of patterns (names or prefixes): one of the ACLs that allow the operation, one of the ACLs
        that deny the operation."""
        host = canonical_host(host)
        allowed: set[str] = set()
        denied: set[str] = set()
        for (kind, name), entries in patterns.items():
            if kind != resource:
                continue
            for acl_host, acl_operation, denies in _of_principal(entries, principal):
                if acl_host in (WILDCARD, host) and acl_operation in (operation, Operation.ALL):
                    (denied if denies else allowed).add(name)
        return allowed, denied


def _of_principal(entries: _Entries, principal: str) -> Iterator[tuple[str, int, bool]]:
    yield from entries.get(principal, ())
    yield from entries.get(WILDCARD_PRINCIPAL, ())


def parse_super_users(value: str) -> frozenset[str]:
    """Returns the principals of `super.users`, which are separated by semicolons. Raises ValueError."""
    users = frozenset(filter(None, (part.strip() for part in value.split(";"))))
    for user in users:
        kind, colon, name = user.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"super.users has the entry {user!r}: write each user as User:name, separated by ';'.")
    return users
