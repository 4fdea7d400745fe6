"""Measures what one check of the authorizer costs with 10,000 ACLs: a first check, and one whose result is cached.

    python -m bench.acl_cost

8,000 ACLs name a topic and 2,000 a prefix, of 11 different lengths. The figures are CPU time, the best of five rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.metadata.image import AclImage
from penstock.security.authorizer import Authorizer
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission

TOPICS, PREFIXES, ROUNDS = 8_000, 2_000, 5
HOST = "10.0.0.7"


def _acl(name: str, principal: str, pattern: PatternType) -> AclImage:
    return AclImage(
        resource_type=AclResource.TOPIC,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host="*",
        operation=Operation.READ,
        permission_type=Permission.ALLOW,
    )


def _authorizer() -> Authorizer:
    acls = [_acl(f"topic-{number}", f"User:{number % 500}", PatternType.LITERAL) for number in range(TOPICS)]
    acls += [
        _acl("team-" + "x" * (number % 11) + f"{number}-", "User:7", PatternType.PREFIXED) for number in range(PREFIXES)
    ]
    return Authorizer(acls)


def _microseconds_per_check(check: Callable[[str], bool]) -> float:
    began = time.thread_time()
    for number in range(TOPICS):
        check(f"topic-{number}")
    return (time.thread_time() - began) / TOPICS * 1e6


def main() -> None:
    first, cached = [], []
    for _ in range(ROUNDS):
        authorizer = _authorizer()

        def check(name: str, authorizer: Authorizer = authorizer) -> bool:
            return authorizer.allows("User:7", HOST, Operation.READ, AclResource.TOPIC, name)

        first.append(_microseconds_per_check(check))
        cached.append(_microseconds_per_check(check))
    print(f"{TOPICS + PREFIXES:,} ACLs: {min(first):.2f} µs for a first check, {min(cached):.2f} µs for a cached one")


if __name__ == "__main__":
    main()
