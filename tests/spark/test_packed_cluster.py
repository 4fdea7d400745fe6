"""`penstock pipeline pack` on a cluster whose executors have neither Penstock nor the driver's paths.

Drivers are started with spark-submit, as on a real cluster; each is a process that has only the system's Python.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from sink_driver import committed_rows
from standalone import BARE_PATH, EXECUTORS, Standalone, bare_environment, spark_home, standalone

from penstock.pipelines.packing import OURS, pack
from penstock.testing import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]
PATIENCE_S = 600
SYSTEM_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKED = {"PYSPARK_PYTHON": "./env/bin/python3", "PYSPARK_DRIVER_PYTHON": "./env/bin/python3"}

JOB = """
import os, sys
from penstock.spark import session
spark = session("packed")
assert spark.sparkContext.master.startswith("spark://"), spark.sparkContext.master
options = {"kafka.bootstrap.servers": sys.argv[1]}
read = {"subscribe": "t", "startingOffsets": "earliest", "minPartitions": "4"}
assert spark.read.format("penstock").options(**options, **read).load().count() == 1000
query = (
    spark.readStream.format("penstock").options(**options, **read).load().select("key", "value").writeStream
    .format("penstock").options(**options, topic="copy", checkpointLocation="checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
print("DONE")
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"t": 2, "copy": 2}) as made:
        with made.client() as client, client.producer() as producer:
            producer.send_many("t", [(None, b"%d" % number, (), None) for number in range(1000)])
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    if shutil.which(SYSTEM_PYTHON, path=BARE_PATH) is None:
        pytest.skip(f"the system has no {SYSTEM_PYTHON}")
    with standalone(tmp_path_factory.mktemp("cluster"), bare=True) as made:
        yield made


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("packed") / "env.tar.gz"
    pack(target)
    return target


def unpack(archive: Path, place: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(place / "env", filter="data")


def submission(cluster: Standalone, *words: str) -> list[str]:
    settings = EXECUTORS | {"spark.ui.enabled": "false", "spark.driver.memory": "600m"}
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.url, *given, *words]


def submit(
    place: Path, cluster: Standalone, broker: Broker, *words: str, job: str = JOB, **environment: str
) -> tuple[int, str]:
    """Runs a driver in this directory; returns its exit code and output."""
    (place / "job.py").write_text(job)
    done = subprocess.run(
        [*submission(cluster, *words), "job.py", broker.bootstrap],
        cwd=place,
        env=bare_environment() | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_job_with_a_packed_environment_reads_and_writes_on_executors_without_penstock(
    tmp_path: Path, cluster: Standalone, broker: Broker, archive: Path
) -> None:
    unpack(archive, tmp_path)
    code, said = submit(tmp_path, cluster, broker, "--archives", f"{archive}#env", **PACKED)
    assert (code, "DONE" in said) == (0, True), said[-4000:]
    found = sorted(int(record.value or b"") for record in broker.records("copy"))
    assert found == list(range(1000))


@pytest.fixture(scope="module")
def without_penstock(archive: Path) -> Path:
    """Returns an environment with the packages that Penstock needs but without Penstock, as a node may have it."""
    target = archive.with_name("node.tar.gz")
    ours = tuple(f"lib/{package}/" for package in OURS)
    with tarfile.open(archive) as packed, tarfile.open(target, "w:gz", compresslevel=1) as left:
        for each in packed:
            if not each.name.startswith(ours):
                left.addfile(each, packed.extractfile(each))
    return target


def test_executors_without_penstock_can_load_penstock_from_py_files(
    tmp_path: Path, cluster: Standalone, broker: Broker, archive: Path, without_penstock: Path
) -> None:
    broker.create_topic("zipped", 2)
    unpack(archive, tmp_path)
    pack(tmp_path / "penstock.zip")
    words = ["--archives", f"{without_penstock}#env", "--py-files", "penstock.zip"]
    code, said = submit(tmp_path, cluster, broker, *words, job=JOB.replace('"copy"', '"zipped"'), **PACKED)
    assert (code, "DONE" in said) == (0, True), said[-4000:]
    assert sorted(int(record.value or b"") for record in broker.records("zipped")) == list(range(1000))


def test_job_on_executors_without_penstock_fails_with_an_error_of_one_sentence(
    tmp_path: Path, cluster: Standalone, broker: Broker, archive: Path, without_penstock: Path
) -> None:
    unpack(archive, tmp_path)
    code, said = submit(tmp_path, cluster, broker, "--archives", f"{without_penstock}#env", **PACKED)
    assert code != 0
    assert "Tasks of format(\"penstock\") need module 'penstock', which " in said, said[-4000:]
    assert "No module named" not in said


COPY = """
import sys
from penstock.spark import session
spark = session("copy")
where = {"kafka.bootstrap.servers": sys.argv[1]}
query = (
    spark.readStream.format("penstock").options(**where, subscribe="t", startingOffsets="earliest")
    .option("maxOffsetsPerTrigger", "50").load().selectExpr("string(partition) AS key", "value").writeStream
    .format("penstock").options(**where, topic="copied", checkpointLocation="copied.checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def batches_done(place: Path) -> int:
    return len(list((place / "copied.checkpoint" / "commits").glob("[0-9]*")))


def copy_with_kills(
    place: Path, cluster: Standalone, broker: Broker, archive: Path, kills: list[tuple[int, str]]
) -> int | None:
    """Runs the driver. Returns its exit code; None if it was killed.

    Each entry of `kills` is carried out, and removed, when its number of batches is completed.
    """
    with (place / "driver.log").open("ab") as log:
        command = submission(cluster, "--archives", f"{archive}#env", "--conf", "spark.task.maxFailures=20")
        driver = subprocess.Popen(
            [*command, "copying.py", broker.bootstrap],
            cwd=place,
            env=bare_environment() | PACKED,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                return driver.wait(0.05)
            if kills and batches_done(place) >= kills[0][0]:
                kind = kills[0][1]
                if kind == "driver":
                    kills.pop(0)
                    return None
                found = cluster.executors() if kind == "executor" else cluster.python_workers()
                if found:
                    kills.pop(0)
                    with suppress(ProcessLookupError):
                        os.kill(found[0], signal.SIGKILL)
        raise TimeoutError(f"the driver is not through after {PATIENCE_S} s: see {place}/driver.log")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_query_writes_each_row_once_although_executors_workers_and_driver_are_killed(
    tmp_path: Path, cluster: Standalone, broker: Broker, archive: Path
) -> None:
    broker.create_topic("copied", 2)
    unpack(archive, tmp_path)
    (tmp_path / "copying.py").write_text(COPY)
    kills = [(1, "executor"), (3, "worker"), (6, "driver"), (9, "worker"), (12, "executor")]
    codes = [copy_with_kills(tmp_path, cluster, broker, archive, kills) for _ in range(2)]
    assert codes == [None, 0], (tmp_path / "driver.log").read_text()[-4000:]
    assert kills == []
    found = sorted(int(value) for _, value in committed_rows(broker, "copied"))
    assert found == list(range(1000))
