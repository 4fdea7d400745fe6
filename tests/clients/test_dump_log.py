"""Tests that Kafka's own tool prints every file of a log without an error: segments, indexes, transactions,
producers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from penstock.clock import ManualClock
from penstock.disk.real import RealDisk
from penstock.log.cleaner import Cleaner
from penstock.log.log import AppendOrigin, Log
from penstock.log.manager import LogManager
from penstock.metadata.configs.topic import LogConfig
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn

pytestmark = pytest.mark.java

DUMP = "org.apache.kafka.tools.DumpLogSegments"
NOW = 1_700_000_000_000
COMPLAINTS = re.compile(
    r"mismatch|error|exception|corrupt|isvalid: false|out of order|could not|not larger", re.IGNORECASE
)

KafkaTool = Callable[..., "CompletedProcess[str]"]


def fill(log: Log) -> None:
    for number in range(300):
        records = [(NOW + number * 10 + step, b"k%d" % (number % 7), b"v" * 50, (("h", b"x"),)) for step in range(4)]
        log.append_as_leader(build_batch(records, compression=number % 5), leader_epoch=number // 100, now_ms=NOW)
    for number in range(4):
        data = build_batch(
            [(NOW + 5000, b"a", None, ())] * 2,
            producer_id=9,
            producer_epoch=1,
            base_sequence=number * 2,
            transactional=True,
        )
        log.append_as_leader(data, leader_epoch=3, now_ms=NOW)
        marker = build_end_txn(EndTxn(number % 2 == 0, 4), producer_id=9, producer_epoch=1, timestamp=NOW + 6000)
        log.append_as_leader(marker, leader_epoch=3, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)


async def make(root: Path, config: LogConfig, *, compact: bool = False) -> None:
    logs = LogManager(RealDisk(), [str(root)], ManualClock(NOW))
    await logs.open(node_id=1, cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    log = logs.create("t", bytes(range(16)), 0, config)
    fill(log)
    if compact:
        log.roll()
        await Cleaner(logs).run()
    await logs.close(broker_epoch=1)


def dump(kafka_tool: KafkaTool, paths: list[Path], *options: str) -> str:
    done = kafka_tool(DUMP, "--files", ",".join(map(str, paths)), *options)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if COMPLAINTS.search(line)]
    assert not complaints
    return done.stdout


@pytest.mark.parametrize("compact", [False, True])
def test_kafkas_dump_log_tool_prints_every_file_of_a_log_without_an_error(
    tmp_path: Path, kafka_tool: KafkaTool, compact: bool
) -> None:
    policy = frozenset({"compact" if compact else "delete"})
    config = LogConfig(segment_bytes=30_000, cleanup_policy=policy, min_cleanable_dirty_ratio=0.0)
    asyncio.run(make(tmp_path, config, compact=compact))
    files = sorted((tmp_path / "t-0").iterdir())
    assert len([path for path in files if path.suffix == ".log"]) > 1
    said = dump(kafka_tool, [path for path in files if path.suffix == ".log"])
    assert "isvalid: true" in said
    assert "Non-consecutive" not in said or compact
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        chosen = [path for path in files if path.suffix == suffix]
        assert chosen, suffix
        said = dump(kafka_tool, chosen)
        assert f"Dumping {chosen[0]}" in said or f"Dumping {chosen[0].name}" in said


def test_kafkas_dump_log_tool_confirms_that_indexes_match_the_records(tmp_path: Path, kafka_tool: KafkaTool) -> None:
    asyncio.run(make(tmp_path, LogConfig(segment_bytes=30_000)))
    files = sorted((tmp_path / "t-0").iterdir())
    indexes = [path for path in files if path.suffix == ".index"]
    said = dump(kafka_tool, indexes, "--index-sanity-check")
    assert said.count("passed sanity check") == len(indexes)
    verified = [path for path in files if path.suffix in (".index", ".timeindex")]
    dump(kafka_tool, verified, "--verify-index-only")


def test_kafkas_dump_log_tool_prints_each_record_of_the_first_segment(tmp_path: Path, kafka_tool: KafkaTool) -> None:
    asyncio.run(make(tmp_path, LogConfig()))
    said = dump(kafka_tool, [tmp_path / "t-0" / f"{0:020d}.log"], "--print-data-log")
    assert "Non-consecutive" not in said
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", said, re.MULTILINE)]
    assert offsets == list(range(1212))
    assert said.count("endTxnMarker: ABORT") == said.count("endTxnMarker: COMMIT") == 2
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in said.lower()
