"""Collects metrics of the node itself: process, connections, quorum, replication, failovers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from penstock.http.exposition import Distribution, Family, counter, gauge, histogram
from penstock.http.failover_metrics import failover_families
from penstock.http.overview import DAMAGED_MAX
from penstock.http.replica_guard_metrics import replica_guard_families
from penstock.http.request_metrics import request_families
from penstock.http.share_metrics import share_families
from penstock.net.traffic import KNOWN
from penstock.net.yielding import yield_between_slices

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.http.pipelines import Pipeline
    from penstock.http.view import View
    from penstock.net.loop_delays import LoopDelays
    from penstock.net.server import Server

MOVES_MAX = 100


def node_families(view: View) -> Iterator[Family]:
    yield from _process(view)
    yield from _connections(view.server)
    yield from _loop(view.server.loop_delays)
    yield from request_families(view.broker.times)
    yield from _quorum(view.broker)
    yield from _replication(view.broker)
    yield from failover_families(view.broker)
    yield from _events(view.broker)
    yield from directory_families(view.broker)
    yield from _moves(view.broker)
    yield from replica_guard_families(view.broker)
    yield from share_families(view.broker.share_partitions)


def _process(view: View) -> Iterator[Family]:
    broker = view.broker
    info = gauge("penstock_info", "This node: always 1.")
    info.add(1, version=version(), node=broker.node_id, cluster=broker.cluster_id)
    yield info
    yield gauge("process_start_time_seconds", "Start time of this node in seconds since 1970.", view.started_ms / 1000)
    yield counter("process_cpu_seconds_total", "Processor time of this process.", time.process_time())
    resident = resident_bytes()
    if resident is not None:
        yield gauge("process_resident_memory_bytes", "Memory of this process.", resident)


@cache
def version() -> str:
    from importlib.metadata import version as of

    return of("penstock")


def resident_bytes() -> int | None:
    """Returns the process's resident memory in bytes; None if the system has no /proc."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _events(broker: Broker) -> Iterator[Family]:
    events = counter("penstock_events_total", "Events of this node by kind.")
    for kind, count in sorted(broker.events.counts.items()):
        events.add(count, kind=kind)
    yield events
    if broker.event_topic is not None:
        dropped = broker.event_topic.dropped
        yield counter("penstock_events_dropped_total", "Events that the topic of events did not get.", dropped)


def _connections(server: Server) -> Iterator[Family]:
    now = gauge("penstock_connections", "Connections that are open.")
    for listener in sorted(server.listeners, key=lambda each: each.name):
        now.add(listener.connections, listener=listener.name)
    yield now
    yield counter("penstock_connections_accepted_total", "Connections that were accepted.", server.accepted)
    yield counter("penstock_connections_refused_total", "Connections refused because of a limit.", server.refused)
    yield counter("penstock_requests_total", "Requests that were received.", server.requests)
    yield gauge("penstock_requests_in_progress", "Requests that wait for a result.", len(server.in_progress))


def _loop(delays: LoopDelays) -> Iterator[Family]:
    times = histogram("penstock_loop_delay_seconds", "How late the event loop ran a timer of 20 ms.")
    times.add(Distribution.in_seconds(delays.delays, 1_000_000))
    yield times
    yield counter("penstock_loop_stalls_total", "Delays of the event loop of more than 50 ms.", delays.stalls)
    longest_s = delays.longest_us / 1_000_000
    yield gauge(
        "penstock_loop_delay_longest_seconds", "The longest delay of the event loop since the start.", longest_s
    )


async def traffic_families(server: Server) -> list[Family]:
    """Returns metrics of bytes sent and received.

    Yields to the event loop from time to time, because each connection costs a system call.
    """
    if not KNOWN:
        return []
    received = {listener.name: listener.gone.received for listener in server.listeners}
    sent = {listener.name: listener.gone.sent for listener in server.listeners}
    for number, connection in enumerate(list(server.connections.values())):
        await yield_between_slices(number)
        traffic = connection.traffic()
        received[connection.listener.name] += traffic.received
        sent[connection.listener.name] += traffic.sent
    come = counter("penstock_network_received_bytes_total", "Bytes received, including requests of other nodes.")
    gone = counter("penstock_network_sent_bytes_total", "Bytes sent, including responses to other nodes.")
    for name in sorted(received):
        come.add(received[name], listener=name)
        gone.add(sent[name], listener=name)
    return [come, gone]


def _quorum(broker: Broker) -> Iterator[Family]:
    view = broker.metadata.quorum()
    voter = any(each.node_id == broker.node_id for each in view.voters)
    role = "leader" if broker.metadata.leading else "voter" if voter else "observer"
    roles = gauge("penstock_quorum_role", "This node's role in the metadata quorum: 1 for its current role.")
    for each in ("leader", "voter", "observer"):
        roles.add(int(each == role), role=each)
    yield roles
    yield gauge("penstock_quorum_leader", "The node that is the active controller, -1 for none.", view.leader_id)
    yield gauge("penstock_quorum_epoch", "The quorum's epoch.", view.leader_epoch)
    yield gauge("penstock_quorum_voters", "Voters of the quorum.", len(view.voters))
    yield gauge("penstock_quorum_high_watermark", "High watermark of the metadata log.", view.high_watermark)
    yield gauge("penstock_quorum_log_end_offset", "End offset of this node's metadata log.", view.log_end_offset)
    yield gauge(
        "penstock_metadata_applied_offset",
        "Last metadata record applied here.",
        broker.metadata.image.offset,
    )
    lag = gauge("penstock_quorum_replica_lag_records", "Lag of a node's metadata log, as known to the leader.")
    for replica in sorted((*view.replicas, *view.observers), key=lambda each: each.key.node_id):
        if replica.log_end_offset >= 0:
            lag.add(max(0, view.log_end_offset - replica.log_end_offset), replica=replica.key.node_id)
    yield lag


def _replication(broker: Broker) -> Iterator[Family]:
    changes, counts = broker.replicas.isr_changes, broker.replicas.counts
    yield counter("penstock_isr_shrinks_total", "ISR shrinks of partitions led here.", changes.shrinks)
    yield counter("penstock_isr_expands_total", "ISR expansions of partitions led here.", changes.expands)
    yield counter("penstock_isr_refusals_total", "ISR changes that the controller refused.", changes.refusals)
    yield from _own_lag(broker)
    yield counter("penstock_replica_fetch_bytes_total", "Bytes copied from leaders.", counts.bytes_in)
    yield counter("penstock_replica_fetch_requests_total", "Fetches from leaders.", counts.requests)
    yield counter("penstock_replica_fetch_errors_total", "Partitions whose fetch failed.", counts.errors)
    yield counter("penstock_replica_truncations_total", "Logs truncated to match their leader's.", counts.truncations)
    yield counter(
        "penstock_replica_truncated_records_total", "Records removed by truncation.", counts.truncated_records
    )
    yield counter("penstock_replica_resets_total", "Logs restarted at their leader's log start.", counts.resets)


def _own_lag(broker: Broker) -> Iterator[Family]:
    """Yields the lag of this node's replicas behind their leaders, as Kafka's fetchers measure it.

    The lag is the leader's high watermark minus the next offset to fetch, at the last fetch that was answered.
    """
    most = gauge("penstock_replica_lag_records_max", "Largest lag of a replica here behind its leader, by leader.")
    total = gauge("penstock_replica_lag_records_sum", "Lag of all replicas here behind their leaders, by leader.")
    late = gauge("penstock_replica_lag_seconds_max", "Longest time that a replica here has been behind, by leader.")
    age = gauge("penstock_replica_fetch_age_seconds", "Time since a leader last answered a fetch of this node.")
    for leader, lag in sorted(broker.replicas.lags().items()):
        most.add(lag.largest, leader=leader)
        total.add(lag.total, leader=leader)
        late.add(lag.longest_ms / 1000, leader=leader)
        age.add(lag.answered_ms_ago / 1000, leader=leader)
    yield from (most, total, late, age)


def directory_families(broker: Broker) -> Iterator[Family]:
    offline = gauge("penstock_log_directory_offline", "Whether a log directory has failed.")
    for directory in sorted(broker.logs.dirs, key=lambda each: each.path):
        offline.add(int(directory.offline), directory=directory.path)
    yield offline
    total = gauge("penstock_log_directory_total_bytes", "Size of a log directory's volume.")
    free = gauge("penstock_log_directory_free_bytes", "Bytes that can still be written to a log directory.")
    short = gauge("penstock_log_directory_short_of_space", "Whether records of clients are refused for lack of space.")
    refusing = broker.logs.dirs.free_space.short()
    for directory in sorted(broker.logs.dirs, key=lambda each: each.path):
        size, usable = (-1, -1) if directory.offline else directory.space()
        if size >= 0:
            total.add(size, directory=directory.path)
            free.add(usable, directory=directory.path)
        short.add(int(directory.path in refusing), directory=directory.path)
    yield from (total, free, short)
    damaged = gauge("penstock_partition_damaged", "Replicas here in which a damaged batch was found: always 1.")
    for topic, partition in sorted(broker.logs.corruptions)[:DAMAGED_MAX]:
        damaged.add(1, topic=topic, partition=partition)
    yield gauge(
        "penstock_partitions_damaged",
        "Number of replicas here in which a damaged batch was found.",
        len(broker.logs.corruptions),
    )
    yield damaged


def _moves(broker: Broker) -> Iterator[Family]:
    """Yields metrics of moves between log directories: counts of all moves, and the progress of at most MOVES_MAX
    moves."""
    moves = broker.moves
    figures = moves.figures()
    left = gauge("penstock_log_move_bytes_left", "Bytes that a move between log directories still has to copy.")
    records = gauge("penstock_log_move_records_left", "Offsets that a move still has to copy.")
    rate = gauge("penstock_log_move_bytes_per_second", "Bytes per second that a move copies.")
    time = gauge("penstock_log_move_seconds_left", "Estimated seconds until a move has caught up, once it copies.")
    for each in figures[:MOVES_MAX]:
        labels = {"topic": each.topic, "partition": each.partition, "directory": each.target}
        left.add(each.bytes_left, **labels)
        records.add(each.records_left, **labels)
        rate.add(each.bytes_per_second, **labels)
        if each.seconds_left is not None:
            time.add(each.seconds_left, **labels)
    yield gauge("penstock_log_moves", "Moves between log directories that have not ended.", len(figures))
    yield from (left, records, rate, time)
    ended = counter("penstock_log_moves_ended_total", "Moves between log directories that have ended.")
    for state, count in moves.counts.items():
        ended.add(count, outcome=state.value)
    yield ended
    copied = moves.copied_bytes + sum(each.copied_bytes for each in figures)
    yield counter("penstock_log_move_copied_bytes_total", "Bytes copied between log directories.", copied)


def pipeline_families(pipelines: list[Pipeline]) -> Iterator[Family]:
    """Yields metrics of pipelines.

    A stopped pipeline has no values, because its last values are outdated.
    """
    up = gauge("penstock_pipeline_running", "Whether a pipeline of this machine runs.")
    lag = gauge("penstock_pipeline_lag_records", "Offsets that the query has not read yet.")
    rate = gauge("penstock_pipeline_rows_per_second", "Rows per second of the query's last batch.")
    batch = gauge("penstock_pipeline_batch_milliseconds", "How long the query's last batch took.")
    rows = counter("penstock_pipeline_rows_total", "Rows that the query has processed since it was started.")
    for pipeline in pipelines:
        up.add(int(pipeline.state == "running"), pipeline=pipeline.name)
        for query in pipeline.queries if pipeline.state == "running" else ():
            labels = {"pipeline": pipeline.name, "query": query.name}
            lag.add(query.lag, **labels)
            rate.add(query.rows_per_second, **labels)
            batch.add(query.batch_ms, **labels)
            rows.add(query.total_rows, **labels)
    yield from (up, lag, rate, batch, rows)
