"""Runs every fenced block of the README and the docs as it is written, unless the block is listed here with a reason.

Two things differ from a reader's terminal. PENSTOCK_BOOTSTRAP, or the address in a Python block, names this test's
broker. A server command gets `--port 0`, because the ports in the docs may be in use.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.cli.main import NOUNS, build_parser
from penstock.testing import Broker

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(penstock [^`]+)`")
LIMIT_S = 300.0


class Block(NamedTuple):
    page: str
    language: str
    text: str
    name: str


def blocks() -> list[Block]:
    """Returns all blocks, named by page and first line. A second block with the same name gets the suffix (2)."""
    found: list[Block] = []
    for path in PAGES:
        for language, text in FENCED.findall(path.read_text()):
            name = f"{path.name}: {text.splitlines()[0].split('  ')[0][:72]}"
            again = sum(each.name.startswith(name) for each in found)
            found.append(Block(path.name, language, text, f"{name} ({again + 1})" if again else name))
    return found


class Reader:
    """Imitates the terminal of a reader: an empty directory, `penstock` on the PATH, and a broker at the usual
    address."""

    def __init__(self, place: Path, bootstrap: str) -> None:
        self.place = place
        self.bootstrap = bootstrap
        programs = place / ".venv" / "bin"
        programs.mkdir(parents=True)
        penstock = programs / "penstock"
        penstock.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli.main "$@"\n')
        penstock.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PENSTOCK_BOOTSTRAP": bootstrap,
            "PENSTOCK_DATA": str(place / "data"),
            "XDG_STATE_HOME": str(place / "state"),
        }

    def shell(self, text: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["bash", "-euc", text],
            cwd=cwd or self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def serving(self, command: str) -> Iterator[str]:
        """Runs a server command until the `with` block ends. Yields the address of the server."""
        process = subprocess.Popen(
            shlex.split(command, comments=True),
            cwd=self.place,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            assert ready.startswith("ready "), f"{command}: {ready}{process.stdout.read()}"
            yield ready.split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, command

    def python(self, text: str, **names: Any) -> dict[str, Any]:
        names["__name__"] = "reader"
        exec(compile(text.replace("127.0.0.1:9092", self.bootstrap), "<docs>", "exec"), names)
        return names


@pytest.fixture
def reader(tmp_path: Path, penstock: Broker) -> Reader:
    return Reader(tmp_path, penstock.bootstrap)


# --- how blocks are run -------------------------------------------------------------------------------------------


def run_shell(block: Block, reader: Reader) -> None:
    reader.shell(block.text)


def run_python(block: Block, reader: Reader) -> None:
    reader.python(block.text)


def find_targets(block: Block, reader: Reader) -> None:
    """Checks that the make targets exist, but runs none: `make test` would run this test, and `make run` installs
    Spark."""
    makefile = (ROOT / "Makefile").read_text()
    for line in block.text.splitlines():
        program, target, *_ = line.split()
        assert program == "make"
        assert re.search(rf"^{re.escape(target)}:.*##", makefile, re.MULTILINE), line


def run_in_repository(block: Block, reader: Reader) -> None:
    """Runs the commands in the repository, with the programs of this environment on the PATH."""
    programs = str(Path(sys.executable).parent)
    reader.environment["PATH"] = f"{reader.place}/.venv/bin{os.pathsep}{programs}{os.pathsep}{os.environ['PATH']}"
    reader.shell(block.text.replace("$PWD/.venv/bin:", ""), cwd=ROOT)


def run_rewrite(block: Block, reader: Reader) -> None:
    """Runs the command, and checks that it leaves scripts with the expected output unchanged."""
    scripts = sorted((ROOT / "tests" / "scenarios").glob("*.txt"))
    before = [each.read_text() for each in scripts]
    run_in_repository(block, reader)
    assert [each.read_text() for each in scripts] == before


def find_penstock(block: Block, reader: Reader) -> None:
    """Runs all lines except the last, which installs a package from the network."""
    reader.environment["PATH"] = os.environ["PATH"]
    *before, pip = block.text.splitlines()
    assert pip.startswith("pip install ")
    assert reader.shell("\n".join([*before, "command -v penstock"])) == f"{reader.place}/.venv/bin/penstock\n"


def run_first_commands(block: Block, reader: Reader) -> None:
    out = reader.shell(block.text)
    assert "17=two apples" in out
    assert '"topic": "orders"' in out


def run_readme_test(block: Block, reader: Reader) -> None:
    served: list[str] = []
    names = reader.python(block.text, run_my_service=served.append)
    names["test_my_service_survives_a_retriable_error"]()
    assert len(served) == 1


def run_pytest_block(block: Block, reader: Reader) -> None:
    (reader.place / "test_block.py").write_text(block.text)
    reader.shell(f"{sys.executable} -m pytest -q -p no:cacheprovider test_block.py")


def write_properties(reader: Reader) -> None:
    (reader.place / "server.properties").write_text(
        "process.roles=broker,controller\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={reader.place}/kafka\n"
    )


def run_format(block: Block, reader: Reader) -> None:
    write_properties(reader)
    reader.shell(block.text)


def run_check_and_start(block: Block, reader: Reader) -> None:
    write_properties(reader)
    reader.shell("penstock storage format --config server.properties --standalone")
    *before, start = block.text.splitlines()
    reader.shell("\n".join(before))
    with reader.serving(start) as bootstrap:
        reader.shell(f"penstock topic list -b {bootstrap}")


def run_three_nodes(block: Block, reader: Reader) -> None:
    """Starts three nodes, and runs the block `penstock cluster status` with them."""
    with reader.serving(block.text.split("#")[0].strip() + " --port 0") as bootstrap:
        status = next(each for each in blocks() if each.name == "README.md: penstock cluster status")
        reader.environment["PENSTOCK_BOOTSTRAP"] = bootstrap
        reader.shell(status.text)


def compare_seed(block: Block, reader: Reader) -> None:
    """Runs the seed of the block. Its first three lines must be printed exactly; in other lines, numbers may differ."""
    first, *_ = block.text.splitlines()
    found = re.fullmatch(r"seed (\d+)  profile (\w+)  .*", first)
    assert found is not None
    printed = reader.shell(f"penstock sim --seed {found[1]} --profile {found[2]}").splitlines()
    loose = {without_numbers(line) for line in printed}
    for number, line in enumerate(block.text.splitlines()):
        if line.strip() == "…":
            continue
        if number < 3:
            assert line in printed
        else:
            assert without_numbers(line) in loose, line


def without_numbers(line: str) -> str:
    return " ".join(re.sub(r"\d[\d.,]*", "N", line).split())


RUN: dict[str, Callable[[Block, Reader], None]] = {
    "README.md: make run": find_targets,
    'README.md: export PATH="$PWD/.venv/bin:$PATH"': find_penstock,
    "README.md: from confluent_kafka import Consumer, Producer": run_python,
    "README.md: penstock topic create orders --partitions 3": run_first_commands,
    "README.md: from penstock.testing import Broker": run_readme_test,
    "README.md: penstock check server.properties": run_check_and_start,
    "README.md: penstock storage format --config server.properties --standalone": run_format,
    "README.md: penstock up --nodes 3": run_three_nodes,
    "README.md: penstock cluster status": run_shell,
    "share-groups.md: from penstock.client.sync import Client": run_python,
    "CONTRIBUTING.md: make unit": find_targets,
    "CONTRIBUTING.md: make test-java": find_targets,
    'CONTRIBUTING.md: export PATH="$PWD/.venv/bin:$PATH"': run_in_repository,
    "CONTRIBUTING.md: pytest tests/scenarios -k kip101_truncation --rewrite": run_rewrite,
    "simulation.md: seed 12": compare_seed,
    "simulation.md: from penstock.testing import SimCluster": run_python,
    "testing.md: import confluent_kafka": run_python,
    "testing.md: import pytest": run_pytest_block,
    "testing.md: import confluent_kafka (2)": run_python,
}
SPARK = "needs a Spark session: tests/spark does the same"
CLUSTER = "needs a Spark cluster: tests/spark/test_packed_cluster.py does the same"
THREE_MACHINES = "needs three machines: tests/clients/test_cluster_by_hand.py does the same on one"
MODEL = "output of tests/models/test_partition_model.py"
POINTS = "takes minutes: tests/unit/sim/test_sim_points.py does the same in small"
BRIDGE = "takes half a minute: tests/clients/test_simulated_cluster.py does the same"
SECURED = "needs certificates: tests/clients/test_secured_listeners.py makes them and does the same"
ROLLING = "needs three machines: tests/unit/node/test_rolling_security.py does the same on one"
NOT_RUN = {
    "security.md: listeners=SASL_SSL://10.0.0.1:9092,CONTROLLER://10.0.0.1:9093": SECURED,
    "security.md: security.protocol=SASL_SSL": SECURED,
    "security.md: sasl.enabled.mechanisms=OAUTHBEARER": "tests/clients/test_oauth_listeners.py has such a listener",
    "security.md: penstock.http.listener=https://10.0.0.1:9644": "tests/unit/node/test_http_security.py has such nodes",
    "security.md: config.providers=file,env": "tests/unit/metadata/test_configs_providers.py resolves such files",
    "simulation.md: penstock sim --profile points --seeds 1..100 --nodes 3 --seconds 20 --jo": POINTS,
    "simulation.md: from penstock.testing import SimBridge": BRIDGE,
    "architecture.md: ┌─ products ────────────────────────────────────────────────────────────": "a picture",
    "architecture.md: producer": "a picture",
    "share-groups.md: available ──fetch──► acquired ──accept──► acknowledged": "a picture",
    "simulation.md: BROKEN after 12 steps: replica 3 may be elected and lacks committed reco": MODEL,
    "operations.md: node.id=1": THREE_MACHINES,
    "operations.md: listeners=PLAINTEXT://10.0.0.1:9092,CONTROLLER://10.0.0.1:9093,SASL_SSL:": ROLLING,
    "operations.md: penstock storage random-uuid": THREE_MACHINES,
    "operations.md: penstock storage format -c server.properties -t $CLUSTER_ID --no-initial": THREE_MACHINES,
    "operations.md: penstock storage format -c server.properties -t $CLUSTER_ID --no-initial (2)": THREE_MACHINES,
    "operations.md: penstock quorum remove-voter 4": THREE_MACHINES,
    "spark-clusters.md: penstock pipeline pack env.tar.gz": CLUSTER,
    "spark-clusters.md: penstock pipeline pack penstock.zip": CLUSTER,
    "pipelines.md: from penstock.spark import session": SPARK,
    "pipelines.md: df = (": SPARK,
    "pipelines.md: from penstock.spark.progress import watch, with_metrics": SPARK,
    'pipelines.md: df.selectExpr("id AS key", "to_json(struct(*)) AS value").write.format("': SPARK,
    "pipelines.md: orders.json": "a listing of files",
}


def test_every_code_block_of_the_docs_is_either_run_or_listed_with_a_reason() -> None:
    assert sorted([*RUN, *NOT_RUN]) == sorted(block.name for block in blocks())


@pytest.mark.parametrize("block", [block for block in blocks() if block.name in RUN], ids=lambda block: block.name)
def test_code_block_of_the_docs_works_as_written(block: Block, reader: Reader) -> None:
    RUN[block.name](block, reader)


def test_blocks_of_the_readme_work_in_order_on_one_broker(reader: Reader) -> None:
    """Runs the blocks like a new user: topics and files that a block leaves must not break the next block."""
    for block in blocks():
        if block.page == "README.md" and RUN[block.name] in (run_python, run_shell, run_first_commands):
            RUN[block.name](block, reader)


def test_no_page_of_the_docs_installs_penstock_from_a_package_index() -> None:
    """Penstock has no release yet, so its name on the index is free or belongs to another project."""
    for path in PAGES:
        for names in re.findall(r"pip install ([^`\n]*)", path.read_text()):
            assert not re.search(r"(?<![\w/.-])penstock\b", names), f"{path.name}: pip install {names}"


# --- commands that are not run ------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, str]]:
    """Yields the commands of the docs, from blocks and from sentences. Skips patterns such as `pipeline
    list|status`."""
    for path in PAGES:
        text = path.read_text()
        for language, block in FENCED.findall(text):
            if language == "sh":
                lines = block.replace("\\\n", " ").splitlines()
                yield from ((path.name, line) for line in lines if line.startswith("penstock "))
        for span in INLINE.findall(FENCED.sub("", text)):
            if not re.search(r"[|…\[]|\b[A-Z]+\b", span):
                yield path.name, span


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_every_command_in_the_docs_exists(page: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command, comments=True)[1:]
    if words[0] in NOUNS and len(words) < 3:
        words.append("--help")  # a command that is named without its required arguments
    code = 0
    try:
        build_parser(words[0]).parse_args(words)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    assert code == 0, f"{page}: {command}: {capsys.readouterr().err}"
