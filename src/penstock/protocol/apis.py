"""Lists Kafka 4.3's APIs: keys, versions, and the listeners that serve them. Message modules are imported on first
use."""

from functools import cache
from importlib import import_module
from typing import NamedTuple

from penstock.protocol.schema import Message

PRODUCE = 0
FETCH = 1
METADATA = 3
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
API_VERSIONS = 18
TXN_OFFSET_COMMIT = 28
_CLIENTS = ("BROKER",)
_CONTROLLERS = ("CONTROLLER",)
_BOTH = ("BROKER", "CONTROLLER")


class Api(NamedTuple):
    key: int
    name: str
    min_version: int
    max_version: int
    flexible_since: int | None
    listeners: tuple[str, ...]
    latest_unstable: bool = False
    """True if Kafka does not offer `max_version` to clients by default (`unstable.api.versions.enable`)."""

    @property
    def module(self) -> str:
        return f"api_{self.key:02d}_{self.snake_name}"

    @property
    def snake_name(self) -> str:
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in self.name)[1:]

    @property
    def latest_stable(self) -> int:
        return self.max_version - self.latest_unstable


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(0, "Produce", 3, 13, 9, _CLIENTS),
        Api(1, "Fetch", 4, 18, 12, _BOTH),
        Api(2, "ListOffsets", 1, 11, 6, _CLIENTS),
        Api(3, "Metadata", 0, 13, 9, _CLIENTS),
        Api(8, "OffsetCommit", 2, 10, 8, _CLIENTS),
        Api(9, "OffsetFetch", 1, 10, 6, _CLIENTS),
        Api(10, "FindCoordinator", 0, 6, 3, _CLIENTS),
        Api(11, "JoinGroup", 0, 9, 6, _CLIENTS),
        Api(12, "Heartbeat", 0, 4, 4, _CLIENTS),
        Api(13, "LeaveGroup", 0, 5, 4, _CLIENTS),
        Api(14, "SyncGroup", 0, 5, 4, _CLIENTS),
        Api(15, "DescribeGroups", 0, 6, 5, _CLIENTS),
        Api(16, "ListGroups", 0, 5, 3, _CLIENTS),
        Api(17, "SaslHandshake", 0, 1, None, _BOTH),
        Api(18, "ApiVersions", 0, 4, 3, _BOTH),
        Api(19, "CreateTopics", 2, 7, 5, _BOTH),
        Api(20, "DeleteTopics", 1, 6, 4, _BOTH),
        Api(21, "DeleteRecords", 0, 2, 2, _CLIENTS),
        Api(22, "InitProducerId", 0, 6, 2, _CLIENTS, latest_unstable=True),
        Api(23, "OffsetForLeaderEpoch", 2, 4, 4, _CLIENTS),
        Api(24, "AddPartitionsToTxn", 0, 5, 3, _CLIENTS),
        Api(25, "AddOffsetsToTxn", 0, 4, 3, _CLIENTS),
        Api(26, "EndTxn", 0, 5, 3, _CLIENTS),
        Api(27, "WriteTxnMarkers", 1, 2, 1, _CLIENTS),
        Api(28, "TxnOffsetCommit", 0, 5, 3, _CLIENTS),
        Api(29, "DescribeAcls", 1, 3, 2, _BOTH),
        Api(30, "CreateAcls", 1, 3, 2, _BOTH),
        Api(31, "DeleteAcls", 1, 3, 2, _BOTH),
        Api(32, "DescribeConfigs", 1, 4, 4, _BOTH),
        Api(33, "AlterConfigs", 0, 2, 2, _BOTH),
        Api(34, "AlterReplicaLogDirs", 1, 2, 2, _CLIENTS),
        Api(35, "DescribeLogDirs", 1, 5, 2, _CLIENTS),
        Api(36, "SaslAuthenticate", 0, 2, 2, _BOTH),
        Api(37, "CreatePartitions", 0, 3, 2, _BOTH),
        Api(38, "CreateDelegationToken", 1, 3, 2, _BOTH),
        Api(39, "RenewDelegationToken", 1, 2, 2, _BOTH),
        Api(40, "ExpireDelegationToken", 1, 2, 2, _BOTH),
        Api(41, "DescribeDelegationToken", 1, 3, 2, _BOTH),
        Api(42, "DeleteGroups", 0, 2, 2, _CLIENTS),
        Api(43, "ElectLeaders", 0, 2, 2, _BOTH),
        Api(44, "IncrementalAlterConfigs", 0, 1, 1, _BOTH),
        Api(45, "AlterPartitionReassignments", 0, 1, 0, _BOTH),
        Api(46, "ListPartitionReassignments", 0, 0, 0, _BOTH),
        Api(47, "OffsetDelete", 0, 0, None, _CLIENTS),
        Api(48, "DescribeClientQuotas", 0, 1, 1, _CLIENTS),
        Api(49, "AlterClientQuotas", 0, 1, 1, _BOTH),
        Api(50, "DescribeUserScramCredentials", 0, 0, 0, _BOTH),
        Api(51, "AlterUserScramCredentials", 0, 0, 0, _BOTH),
        Api(52, "Vote", 0, 2, 0, _CONTROLLERS),
        Api(53, "BeginQuorumEpoch", 0, 1, 1, _CONTROLLERS),
        Api(54, "EndQuorumEpoch", 0, 1, 1, _CONTROLLERS),
        Api(55, "DescribeQuorum", 0, 2, 0, _BOTH),
        Api(56, "AlterPartition", 2, 3, 0, _CONTROLLERS),
        Api(57, "UpdateFeatures", 0, 2, 0, _BOTH),
        Api(58, "Envelope", 0, 0, 0, _CONTROLLERS),
        Api(59, "FetchSnapshot", 0, 1, 0, _CONTROLLERS),
        Api(60, "DescribeCluster", 0, 2, 0, _BOTH),
        Api(61, "DescribeProducers", 0, 0, 0, _CLIENTS),
        Api(62, "BrokerRegistration", 0, 4, 0, _CONTROLLERS),
        Api(63, "BrokerHeartbeat", 0, 2, 0, _CONTROLLERS),
        Api(64, "UnregisterBroker", 0, 0, 0, _BOTH),
        Api(65, "DescribeTransactions", 0, 0, 0, _CLIENTS),
        Api(66, "ListTransactions", 0, 2, 0, _CLIENTS),
        Api(67, "AllocateProducerIds", 0, 0, 0, _CONTROLLERS),
        Api(68, "ConsumerGroupHeartbeat", 0, 1, 0, _CLIENTS),
        Api(69, "ConsumerGroupDescribe", 0, 1, 0, _CLIENTS),
        Api(70, "ControllerRegistration", 0, 0, 0, _CONTROLLERS),
        Api(71, "GetTelemetrySubscriptions", 0, 0, 0, _CLIENTS),
        Api(72, "PushTelemetry", 0, 0, 0, _CLIENTS),
        Api(73, "AssignReplicasToDirs", 0, 0, 0, _CONTROLLERS),
        Api(74, "ListConfigResources", 0, 1, 0, _CLIENTS),
        Api(75, "DescribeTopicPartitions", 0, 0, 0, _CLIENTS),
        Api(76, "ShareGroupHeartbeat", 1, 1, 0, _CLIENTS),
        Api(77, "ShareGroupDescribe", 1, 1, 0, _CLIENTS),
        Api(78, "ShareFetch", 1, 2, 0, _CLIENTS),
        Api(79, "ShareAcknowledge", 1, 2, 0, _CLIENTS),
        Api(80, "AddRaftVoter", 0, 1, 0, _BOTH),
        Api(81, "RemoveRaftVoter", 0, 0, 0, _BOTH),
        Api(82, "UpdateRaftVoter", 0, 0, 0, _CONTROLLERS),
        Api(83, "InitializeShareGroupState", 0, 0, 0, _CLIENTS),
        Api(84, "ReadShareGroupState", 0, 0, 0, _CLIENTS),
        Api(85, "WriteShareGroupState", 0, 1, 0, _CLIENTS),
        Api(86, "DeleteShareGroupState", 0, 0, 0, _CLIENTS),
        Api(87, "ReadShareGroupStateSummary", 0, 1, 0, _CLIENTS),
        Api(88, "StreamsGroupHeartbeat", 0, 0, 0, _CLIENTS),
        Api(89, "StreamsGroupDescribe", 0, 0, 0, _CLIENTS),
        Api(90, "DescribeShareGroupOffsets", 0, 1, 0, _CLIENTS),
        Api(91, "AlterShareGroupOffsets", 0, 0, 0, _CLIENTS),
        Api(92, "DeleteShareGroupOffsets", 0, 0, 0, _CLIENTS),
    )
}


@cache
def request_class(key: int) -> type[Message]:
    """Returns the request class of an API key. Raises KeyError if APIS does not have the key."""
    return _message_class(APIS[key], "Request")


@cache
def response_class(key: int) -> type[Message]:
    return _message_class(APIS[key], "Response")


def _message_class(api: Api, suffix: str) -> type[Message]:
    module = import_module(f"penstock.protocol.messages.{api.module}")
    cls: type[Message] = getattr(module, api.name + suffix)
    return cls


def is_flexible(key: int, version: int) -> bool:
    since = APIS[key].flexible_since
    return since is not None and version >= since


def request_header_version(key: int, version: int) -> int:
    return 2 if is_flexible(key, version) else 1


def response_header_version(key: int, version: int) -> int:
    """Returns the version of the response header. It is 0 for ApiVersions, so that every client can read the
    response."""
    return 1 if key != API_VERSIONS and is_flexible(key, version) else 0
