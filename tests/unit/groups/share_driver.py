"""Sends the requests of a share group's members to the coordinator of `group_driver`, without a broker."""

from __future__ import annotations

from typing import Any

from consumer_driver import ConsumerDriver

from penstock.groups import share_requests
from penstock.groups.config import GroupConfig
from penstock.groups.share.group import ShareGroup
from penstock.groups.share.states import InitializeStates
from penstock.groups.turn import Caller, Turn
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_76_share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


class ShareDriver(ConsumerDriver):
    """Runs a group coordinator with a share coordinator that responds when the test calls `create_states`."""

    def __init__(self, config: GroupConfig | None = None, topics: dict[str, int] | None = None) -> None:
        super().__init__(config or GroupConfig(share_assignment_interval_ms=0), topics)
        self.asked: list[InitializeStates] = []

    def _settle(self, turn: Turn, code: ErrorCode) -> None:
        self.asked += turn.effects
        super()._settle(turn, code)

    @property
    def group(self) -> ShareGroup:
        group = self.shard.groups["g"]
        assert isinstance(group, ShareGroup)
        return group

    def share_beat(self, member: str, epoch: int, **fields: Any) -> ShareGroupHeartbeatResponse:
        return share_beat(self, member, epoch, **fields)

    def come(self, member: str, *topics: str) -> ShareGroupHeartbeatResponse:
        return self.share_beat(member, 0, subscribed_topic_names=list(topics or ("t",)))

    def create_states(self) -> None:
        """Delivers the pending responses of the share coordinator."""
        asked, self.asked = self.asked, []
        for each in asked:
            slots = each.partitions
            self.run(lambda turn, slots=slots: share_requests.states_initialized(self.shard, turn, "g", slots))  # type: ignore[misc]


def parts(response: ShareGroupHeartbeatResponse) -> dict[str, list[int]] | None:
    if response.assignment is None:
        return None
    return {each.topic_id.rstrip(b".").decode(): each.partitions for each in response.assignment.topic_partitions}


def share_beat(driver: ConsumerDriver, member: str, epoch: int, **fields: Any) -> ShareGroupHeartbeatResponse:
    fields.setdefault("group_id", "g")
    request = ShareGroupHeartbeatRequest(member_id=member, member_epoch=epoch, **fields)
    caller = Caller("client", "/127.0.0.1", 1)
    return driver.run(lambda turn: share_requests.share_heartbeat(driver.shard, turn, request, caller))
