"""Installs and runs Apache Kafka for tests and benchmarks: its jars, its tools and its broker.

    python -m tools.kafka install [--streams]  jars into the cache (needs Java 17+ and Maven; once, about a minute)
    python -m tools.kafka start [--nodes 3]    one or three combined KRaft nodes on 127.0.0.1
    python -m tools.kafka stop [--kill]        stop the nodes that `start` started
    python -m tools.kafka tool CLASS ARGS…     run a class of the jars, e.g. org.apache.kafka.tools.TopicCommand

`PENSTOCK_KAFKA_LIBS` names a directory of jars to use instead of the cache, `JAVA` a java to use instead of PATH's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

VERSION = "4.3.1"
LOG4J = "2.25.3"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "penstock" / "kafka"

# Artifacts that a broker, its tools and the metadata shell need at run time; Maven adds their dependencies.
ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.kafka", "kafka-clients", VERSION),
    ("org.apache.kafka", "kafka-shell", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J),
    ("org.apache.logging.log4j", "log4j-core", LOG4J),
    ("org.apache.logging.log4j", "log4j-1.2-api", LOG4J),
)

# Kafka Streams and its native store, in a directory of their own, because only one test needs them.
STREAMS_ARTIFACTS = (
    ("org.apache.kafka", "kafka-streams", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J),
    ("org.apache.logging.log4j", "log4j-core", LOG4J),
)

# The collector settings of Kafka's own start scripts, so that a comparison is with Kafka as it is usually run.
COLLECTOR = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
BROKER_HEAP = ("-Xmx1G", "-Xms1G")
# A tool runs for a second or two: it starts fastest with a small heap, one compiler tier and the serial collector.
TOOL_FLAGS = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true")

CLUSTER_ID = "cGVuc3RvY2stYmVuY2gtMQ"
START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0


class KafkaUnavailable(Exception):
    """Raised if Java, Maven or the jars are missing. The message says what to install."""


# --- the jars -----------------------------------------------------------------------------------------------------


def java() -> str:
    """Returns the path of a java of version 17 or newer. Raises KafkaUnavailable."""
    command = os.environ.get("JAVA") or shutil.which("java")
    if command is None:
        raise KafkaUnavailable("no java on PATH: install a Java runtime, version 17 or newer")
    said = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < 17:
        raise KafkaUnavailable(f"{command} is older than version 17: install a newer Java runtime")
    return command


def libs_dir() -> Path:
    told = os.environ.get("PENSTOCK_KAFKA_LIBS")
    return Path(told) if told else CACHE / "libs"


def streams_dir() -> Path:
    return CACHE / "streams"


def installed() -> bool:
    return _holds(libs_dir(), ARTIFACTS)


def install() -> Path:
    """Returns the directory with the jars; Maven fetches them if they are missing. Raises KafkaUnavailable."""
    libs = libs_dir()
    if not installed():
        if os.environ.get("PENSTOCK_KAFKA_LIBS"):
            raise KafkaUnavailable(f"PENSTOCK_KAFKA_LIBS={libs} has no jars of Kafka {VERSION}: add them, or unset it")
        fetch(ARTIFACTS, libs)
    return libs


def install_streams() -> Path:
    """Returns the directory with the jars of Kafka Streams, fetched if they are missing. Raises KafkaUnavailable."""
    return fetch(STREAMS_ARTIFACTS, streams_dir())


Artifacts = Sequence[tuple[str, str, str]]


def _holds(libs: Path, artifacts: Artifacts) -> bool:
    return all((libs / f"{name}-{version}.jar").exists() for _, name, version in artifacts)


def fetch(artifacts: Artifacts, libs: Path, *, whole: bool = True) -> Path:
    """Fetches jars into a directory, unless it already has them. `whole` adds their dependencies. Raises
    KafkaUnavailable."""
    if _holds(libs, artifacts):
        return libs
    java()
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("no mvn on PATH: install Maven, or set PENSTOCK_KAFKA_LIBS to a directory of jars")
    CACHE.mkdir(parents=True, exist_ok=True)
    pom = CACHE / f"{libs.name}-pom.xml"
    pom.write_text(_pom(artifacts, whole))
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not _holds(libs, artifacts):
        last = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["no output"]
        raise KafkaUnavailable(f"Maven could not fetch {artifacts[0][1]} {artifacts[0][2]}: {last[0]}")
    return libs


def _pom(artifacts: Artifacts, whole: bool) -> str:
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = "\n".join(
        f"    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version>{'' if whole else alone}</dependency>"
        for group, name, version in artifacts
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>kafka-peer</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{wanted}
  </dependencies>
</project>
"""


def _log4j_config(to_file: bool) -> Path:
    """Writes the log configurations: a broker logs to its own file; a tool prints only warnings, to stderr."""
    path = CACHE / ("log4j2-broker.properties" if to_file else "log4j2-tool.properties")
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        kind, target = "Console", "target = SYSTEM_ERR"
        if to_file:
            kind, target = "File", "fileName = ${sys:kafka.logs.dir}/server.log"
        lines = [
            "status = error",
            f"appender.out.type = {kind}",
            "appender.out.name = out",
            f"appender.out.{target}",
            "appender.out.layout.type = PatternLayout",
            "appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n",
            f"rootLogger.level = {'INFO' if to_file else 'WARN'}",
            "rootLogger.appenderRef.out.ref = out",
        ]
        path.write_text("\n".join(lines) + "\n")
    return path


def tool_command(class_name: str, *args: str, flags: Sequence[str] = TOOL_FLAGS) -> list[str]:
    """Returns the command line that runs a class of the jars."""
    return _java_command(install(), class_name, args, flags)


def streams_command(source: str, *args: str, flags: Sequence[str] = TOOL_FLAGS) -> list[str]:
    """Returns the command line that runs a Kafka Streams application from its only source file."""
    return _java_command(install_streams(), source, args, flags)


def _java_command(libs: Path, class_name: str, args: Sequence[str], flags: Sequence[str]) -> list[str]:
    config = f"-Dlog4j2.configurationFile={_log4j_config(to_file=False)}"
    return [java(), *flags, config, "-cp", f"{libs}/*", class_name, *args]


def run_tool(
    class_name: str,
    *args: str,
    stdin: str | None = None,
    timeout: float = 60.0,
    flags: Sequence[str] = TOOL_FLAGS,
) -> subprocess.CompletedProcess[str]:
    command = tool_command(class_name, *args, flags=flags)
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)


def end_process(process: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
    """Sends the signal and waits; kills a process that does not end."""
    if process is None:
        return
    process.send_signal(how)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# --- brokers ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class KafkaNode:
    """Runs a combined broker and controller of Apache Kafka as a child process."""

    node_id: int
    port: int
    controller_port: int
    data: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def properties(self) -> Path:
        return self.data / "server.properties"

    @property
    def log_dir(self) -> Path:
        return self.data / "log"

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"Kafka node {self.node_id} is not running")
        return self.process.pid

    def spawn(self, heap: Sequence[str]) -> None:
        config = f"-Dlog4j2.configurationFile={_log4j_config(to_file=True)}"
        command = [java(), *heap, *COLLECTOR, f"-Dkafka.logs.dir={self.data}", config]
        command += ["-cp", f"{install()}/*", "kafka.Kafka", str(self.properties)]
        with (self.data / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
            )

    def end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        end_process(process, how)


@dataclass(slots=True)
class KafkaCluster:
    """Runs one or three nodes of Apache Kafka, with their data under one directory.

    with KafkaCluster(data=tmp_path) as kafka:
        client.connect(kafka.bootstrap)
    """

    data: Path
    nodes: int = 1
    port: int = 0
    heap: Sequence[str] = BROKER_HEAP
    overrides: Mapping[str, str] = field(default_factory=dict)
    members: list[KafkaNode] = field(default_factory=list)

    def __enter__(self) -> KafkaCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.members)

    def start(self) -> float:
        """Formats new directories, starts every node, and waits until all serve; returns the seconds from the spawn."""
        install()
        self.place()
        for node in self.members:
            self._write_properties(node)
            if not (node.log_dir / "meta.properties").exists():
                self._format(node)
        began = time.monotonic()
        for node in self.members:
            node.spawn(self.heap)
        for node in self.members:
            wait_until_serving(node, began + START_LIMIT_S)
        return time.monotonic() - began

    def stop(self) -> None:
        for node in self.members:
            node.end(signal.SIGTERM)

    def kill(self) -> None:
        for node in self.members:
            node.end(signal.SIGKILL)

    def place(self) -> None:
        """Chooses ports and directories of the nodes, once."""
        if self.members:
            return
        wanted = [self.port + i for i in range(self.nodes)] if self.port else free_ports(self.nodes)
        for port in wanted:
            if _listening(port):
                raise KafkaUnavailable(f"port {port} is taken: choose another with --port")
        controllers = free_ports(self.nodes)
        for i in range(self.nodes):
            home = self.data / f"node-{i + 1}"
            home.mkdir(parents=True, exist_ok=True)
            self.members.append(KafkaNode(i + 1, wanted[i], controllers[i], home))

    def _write_properties(self, node: KafkaNode) -> None:
        controllers = [each.controller_port for each in self.members]
        properties = {
            **node_properties(node.node_id, node.port, node.controller_port, controllers, node.log_dir),
            **self.overrides,
        }
        node.properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def _format(self, node: KafkaNode) -> None:
        how = ["--standalone"]
        if self.nodes > 1:
            how = ["--initial-controllers", initial_controllers({n.node_id: n.controller_port for n in self.members})]
        args = ["format", *how, "--cluster-id", CLUSTER_ID, "--config", str(node.properties)]
        done = run_tool("kafka.tools.StorageTool", *args)
        if done.returncode != 0:
            raise KafkaUnavailable(f"could not format {node.log_dir}: {(done.stderr or done.stdout).strip()}")


def node_properties(
    node_id: int, port: int, controller_port: int, controllers: Sequence[int], log_dir: Path
) -> dict[str, str]:
    """Returns the properties of a combined node on loopback; `controllers` has the controller ports of all nodes."""
    factor, in_sync = (1, 1) if len(controllers) == 1 else (3, 2)
    listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.bootstrap.servers": ",".join(f"127.0.0.1:{each}" for each in controllers),
        "log.dirs": str(log_dir),
        "default.replication.factor": str(factor),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(factor),
        "transaction.state.log.replication.factor": str(factor),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(factor),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "group.initial.rebalance.delay.ms": "0",
    }


def initial_controllers(controllers: Mapping[int, int]) -> str:
    """Returns `--initial-controllers` for controller ports by node id, with a distinct directory id for each."""
    return ",".join(f"{node_id}@127.0.0.1:{port}:{'A' * 20}{node_id}Q" for node_id, port in controllers.items())


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# An ApiVersions v0 request with correlation id 1: the shortest request that only a serving broker answers.
PING = bytes.fromhex("0000000a 0012 0000 00000001 ffff".replace(" ", ""))


def answers(host: str, port: int, timeout: float = 1.0) -> bool:
    """Returns True if a broker answers at the port with Kafka's protocol."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(PING)
            return len(connection.recv(8)) > 0
    except OSError:
        return False


def wait_until_serving(node: KafkaNode, deadline: float) -> None:
    while not answers("127.0.0.1", node.port):
        if node.process is not None and node.process.poll() is not None:
            raise KafkaUnavailable(f"Kafka node {node.node_id} stopped: see {node.data}/server.log and console.log")
        if time.monotonic() > deadline:
            raise KafkaUnavailable(f"Kafka node {node.node_id} does not answer: see {node.data}/server.log")
        time.sleep(0.01)


# --- the command --------------------------------------------------------------------------------------------------


def _stop_recorded(how: signal.Signals) -> None:
    for path in sorted((CACHE / "run").glob("*.pid")):
        pid = int(path.read_text())
        path.unlink()
        # Another program may have this process id by now: only a Kafka process is ended.
        with contextlib.suppress(OSError):
            if b"kafka.Kafka" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, how)
                while Path(f"/proc/{pid}").exists():
                    time.sleep(0.05)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kafka", description=f"Apache Kafka {VERSION}, as a peer.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    fetch = verbs.add_parser("install", help="fetch the jars")
    fetch.add_argument("--streams", action="store_true", help="those of Kafka Streams, too")
    start = verbs.add_parser("start", help="start one or three nodes")
    start.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    start.add_argument("--port", type=int, default=19092, help="of the first node (default: %(default)s)")
    start.add_argument("--data", type=Path, default=CACHE / "data", help="default: %(default)s")
    start.add_argument("--wipe", action="store_true", help="start empty")
    start.add_argument("--override", action="append", default=[], metavar="NAME=VALUE", help="a server property")
    stop = verbs.add_parser("stop", help="stop every node that was started")
    stop.add_argument("--kill", action="store_true", help="kill -9 instead of a clean stop")
    tool = verbs.add_parser("tool", help="run a class of the jars")
    tool.add_argument("class_name", metavar="CLASS")
    tool.add_argument("args", nargs=argparse.REMAINDER)
    told = parser.parse_args(argv)
    try:
        return _run(told)
    except KafkaUnavailable as problem:
        print(f"tools.kafka: {problem}", file=sys.stderr)
        return 1


def _run(told: argparse.Namespace) -> int:
    match told.verb:
        case "install":
            print(install())
            if told.streams:
                print(install_streams())
        case "start":
            if told.wipe:
                shutil.rmtree(told.data, ignore_errors=True)
            overrides = dict(pair.split("=", 1) for pair in told.override)
            cluster = KafkaCluster(told.data, told.nodes, told.port, overrides=overrides)
            took = cluster.start()
            (CACHE / "run").mkdir(parents=True, exist_ok=True)
            for node in cluster.members:
                (CACHE / "run" / f"{node.port}.pid").write_text(str(node.pid))
                print(f"node {node.node_id}: pid {node.pid}, 127.0.0.1:{node.port}, {node.data}")
            print(f"ready {cluster.bootstrap} after {took:.1f} s")
        case "stop":
            _stop_recorded(signal.SIGKILL if told.kill else signal.SIGTERM)
        case "tool":
            command = tool_command(told.class_name, *told.args)
            os.execv(command[0], command)  # the tool takes this process's place
    return 0


if __name__ == "__main__":
    sys.exit(main())
