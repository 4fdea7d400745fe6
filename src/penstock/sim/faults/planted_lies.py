"""Lists planted bugs that let a node accept a forged message: an id, an epoch or a right is not checked."""

from __future__ import annotations

from typing import Any

from penstock.broker.fetch.fetch_policy import FetchPolicy
from penstock.broker.requests.access_control import AccessControl
from penstock.metadata.controller import broker_states
from penstock.protocol.errors import ErrorCode
from penstock.raft import election
from penstock.security.vocabulary import Operation


def _any_epoch(old: Any) -> Any:
    def refusal(self: FetchPolicy, replica_id: int, broker_epoch: int, listener: str) -> Any:
        broker = self._host.brokers.get(replica_id)
        return old(self, replica_id, broker_epoch if broker is None else broker.epoch, listener)

    return refusal


def _any_candidate(old: Any) -> Any:
    return lambda core, epoch, candidate: ErrorCode.NONE


def _any_incarnation(old: Any) -> Any:
    def registered_broker(image: Any, broker_id: int, epoch: int) -> Any:
        broker = image.brokers.get(broker_id)
        return old(image, broker_id, epoch if broker is None else broker.epoch)

    return registered_broker


def _any_user_is_a_broker(old: Any) -> Any:
    def allows_cluster(self: AccessControl, ctx: Any, operation: Operation) -> bool:
        return operation is Operation.CLUSTER_ACTION or bool(old(self, ctx, operation))

    return allows_cluster


#: Length of a run that looks for one of these bugs.
LIES_SECONDS = 20.0
#: name → (about, replacements, a seed that finds it)
LIES_BELIEVED: dict[str, tuple[str, tuple[tuple[Any, str, Any], ...], int]] = {
    "stale-follower-counts": (
        "a leader does not compare the broker epoch of a follower's fetch: a stranger moves the high watermark",
        ((FetchPolicy, "_refusal", _any_epoch),),
        4,
    ),
    "stranger-gets-votes": (
        "a voter grants its vote to a candidate that is no voter",
        ((election, "candidate_refusal", _any_candidate),),
        2,
    ),
    "stale-heartbeat-counts": (
        "the controller does not compare the broker epoch of a heartbeat: an earlier process fences its broker",
        ((broker_states, "registered_broker", _any_incarnation),),
        5,
    ),
    "any-user-is-a-broker": (
        "every user that has logged in may send the requests of brokers",
        ((AccessControl, "allows_cluster", _any_user_is_a_broker),),
        1,
    ),
}
