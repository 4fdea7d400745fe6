"""Lists the API keys that this node serves, and their handler modules. ApiVersions advertises these keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal, Protocol

from penstock.net.later import Later
from penstock.protocol.apis import APIS

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

HANDLERS: dict[int, str] = {
    0: "api_00_produce",
    1: "api_01_fetch",
    2: "api_02_list_offsets",
    3: "api_03_metadata",
    8: "api_08_offset_commit",
    9: "api_09_offset_fetch",
    10: "api_10_find_coordinator",
    11: "api_11_join_group",
    12: "api_12_heartbeat",
    13: "api_13_leave_group",
    14: "api_14_sync_group",
    15: "api_15_describe_groups",
    16: "api_16_list_groups",
    17: "api_17_sasl_handshake",
    18: "api_18_api_versions",
    19: "api_19_create_topics",
    20: "api_20_delete_topics",
    21: "api_21_delete_records",
    22: "api_22_init_producer_id",
    23: "api_23_offset_for_leader_epoch",
    24: "api_24_add_partitions_to_txn",
    25: "api_25_add_offsets_to_txn",
    26: "api_26_end_txn",
    27: "api_27_write_txn_markers",
    28: "api_28_txn_offset_commit",
    29: "api_29_describe_acls",
    30: "api_30_create_acls",
    31: "api_31_delete_acls",
    32: "api_32_describe_configs",
    33: "api_33_alter_configs",
    34: "api_34_alter_replica_log_dirs",
    35: "api_35_describe_log_dirs",
    36: "api_36_sasl_authenticate",
    37: "api_37_create_partitions",
    38: "api_38_create_delegation_token",
    39: "api_39_renew_delegation_token",
    40: "api_40_expire_delegation_token",
    41: "api_41_describe_delegation_token",
    42: "api_42_delete_groups",
    43: "api_43_elect_leaders",
    44: "api_44_incremental_alter_configs",
    45: "api_45_alter_partition_reassignments",
    46: "api_46_list_partition_reassignments",
    47: "api_47_offset_delete",
    48: "api_48_describe_client_quotas",
    49: "api_49_alter_client_quotas",
    50: "api_50_describe_user_scram_credentials",
    51: "api_51_alter_user_scram_credentials",
    52: "api_52_vote",
    53: "api_53_begin_quorum_epoch",
    54: "api_54_end_quorum_epoch",
    55: "api_55_describe_quorum",
    56: "api_56_alter_partition",
    57: "api_57_update_features",
    58: "api_58_envelope",
    59: "api_59_fetch_snapshot",
    60: "api_60_describe_cluster",
    61: "api_61_describe_producers",
    62: "api_62_broker_registration",
    63: "api_63_broker_heartbeat",
    64: "api_64_unregister_broker",
    65: "api_65_describe_transactions",
    66: "api_66_list_transactions",
    67: "api_67_allocate_producer_ids",
    68: "api_68_consumer_group_heartbeat",
    69: "api_69_consumer_group_describe",
    70: "api_70_controller_registration",
    71: "api_71_get_telemetry_subscriptions",
    72: "api_72_push_telemetry",
    73: "api_73_assign_replicas_to_dirs",
    74: "api_74_list_config_resources",
    75: "api_75_describe_topic_partitions",
    76: "api_76_share_group_heartbeat",
    77: "api_77_share_group_describe",
    78: "api_78_share_fetch",
    79: "api_79_share_acknowledge",
    80: "api_80_add_raft_voter",
    81: "api_81_remove_raft_voter",
    82: "api_82_update_raft_voter",
    83: "api_83_initialize_share_group_state",
    84: "api_84_read_share_group_state",
    85: "api_85_write_share_group_state",
    86: "api_86_delete_share_group_state",
    87: "api_87_read_share_group_state_summary",
    88: "api_88_streams_group_heartbeat",
    89: "api_89_streams_group_describe",
    90: "api_90_describe_share_group_offsets",
    91: "api_91_alter_share_group_offsets",
    92: "api_92_delete_share_group_offsets",
}
#: APIs with another handler on a controller listener.
ON_CONTROLLERS: dict[int, str] = {1: "api_01_fetch_metadata"}

#: Latest versions that are unstable in Kafka 4.3, and the settings that enable them.
UNSTABLE: dict[int, str] = {22: "transaction.two.phase.commit.enable"}

#: APIs that are advertised only if this process has a telemetry receiver, but answered in any case.
TELEMETRY = frozenset({71, 72})

Role = Literal["BROKER", "CONTROLLER"]


class Handler(Protocol):
    def __call__(self, broker: Any, ctx: Any, request: Any, /) -> Any:
        """Handles a request.

        Returns a response, an `Encoded` (a response as bytes), a `Close` (the connection closes), None (no response),
        or a `Later` (makes one of these when a future or coroutine is done).
        """
        ...


def as_handler(function: Callable[..., Any]) -> Handler:
    """Returns the function as a handler.

    The handler of a coroutine function returns a `Later`: a response that is made when the coroutine is done.
    """
    if not iscoroutinefunction(function):
        return function

    @wraps(function)
    def handle(broker: Any, ctx: Any, request: Any, /) -> Later[Any]:
        return Later(function(broker, ctx, request))

    return handle


def load_handler(api_key: int, role: Role = "BROKER") -> Handler:
    name = ON_CONTROLLERS.get(api_key) if role == "CONTROLLER" else None
    module = import_module(f"penstock.broker.handlers.{name or HANDLERS[api_key]}")
    return as_handler(module.handle)


def served_versions(api_key: int, role: Role = "BROKER", *, unstable: bool = False) -> range:
    """Returns the versions of an API that listeners of this role serve; an empty range if there is no handler."""
    api = APIS.get(api_key)
    if api is None or api_key not in HANDLERS or role not in api.listeners:
        return range(0)
    return range(api.min_version, (api.max_version if unstable else api.latest_stable) + 1)


def serves_unstable(api_key: int, broker: Broker) -> bool:
    """Returns True if this node serves the latest version of the API although Kafka marks this version as unstable."""
    return api_key in UNSTABLE and broker.settings.bool(UNSTABLE[api_key])
