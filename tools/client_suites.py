"""Runs the test suites of franz-go and librdkafka against a cluster of three nodes with SASL_SSL, SCRAM and ACLs.

    python -m tools.client_suites franz-go                       needs Go, and franz-go in its module cache or a proxy
    python -m tools.client_suites librdkafka --source DIRECTORY  needs a C compiler, and a checkout of librdkafka

`--only PATTERN` selects tests, `--log FILE` keeps the output of the suite. The command prints the result of each test
and leaves with 1 if a test failed. The tests log in with SCRAM-SHA-512 and authenticate again every 10 s. Two lines of
the suites are changed: see FRANZ_LOGIN and LIBRDKAFKA_CHANGED.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.secured_up import Printed, secured_up

FRANZ_MODULE = Path(__file__).parents[1] / "tests" / "clients" / "franz"
LIMIT_S = 1500.0
FRANZ_RECORDS = 20_000  # of each large test; franz-go's default is 500,000
LIBRDKAFKA_SOURCE = "PENSTOCK_LIBRDKAFKA_SOURCE"
LIBRDKAFKA_BROKER_VERSION = "4.2.0"  # the oldest version with share groups
LIBRDKAFKA_JOBS = 4
LOG = "suite.log"  # in the directory of the run

#: franz-go's tests that can't run here, and why.
FRANZ_SKIPPED = {
    "TestIssue769": "it dials with a function of its own, which franz-go refuses together with TLS",
}
#: The place in franz-go's tests where the options of every client are made; the suite itself logs in in one test only.
FRANZ_TLS = "\t\topts = append(opts, DialTLSConfig(testCert))\n\t}\n"
FRANZ_LOGIN = "\tif saslScram != nil {\n\t\topts = append(opts, SASL(saslScram))\n\t}\n"


#: What librdkafka's suite expects of its cluster, and sessions that end.
OVERRIDES = {
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "3000",
    "allow.everyone.if.no.acl.found": "true",
    "connections.max.reauth.ms": "10000",
}
#: librdkafka's test of broker configs uses a property of Kerberos, which Penstock refuses: another one takes its place.
LIBRDKAFKA_CHANGED = ("0081-admin.c", "sasl.kerberos.min.time.before.relogin", "log.index.interval.bytes")


class SuiteUnavailable(Exception):
    """Raised if a suite can't be built on this machine. The message says what is missing."""


@contextmanager
def secured_cluster(home: Path) -> Iterator[Printed]:
    """Starts three nodes. The application user has no ACLs and may do everything."""
    overrides = [word for name, value in OVERRIDES.items() for word in ("--override", f"{name}={value}")]
    with secured_up(home, "--nodes", "3", *overrides) as printed:
        remove_acls(printed)
        yield printed


def remove_acls(printed: Printed) -> None:
    """Removes the ACLs that `penstock up --secure` makes: librdkafka's tests count the ACLs of the cluster."""
    command = [sys.executable, "-m", "penstock.cli.main", "acl"]
    where = ["--bootstrap", printed.bootstrap, "--command-config", printed.admin_properties, "--json"]
    listed = subprocess.run([*command, "list", *where], capture_output=True, text=True, check=True)
    for kind, name, principal in {
        (row["resource"], row["name"], row["principal"]) for row in json.loads(listed.stdout)
    }:
        named = ["--cluster"] if kind == "cluster" else [f"--{kind}", name]
        removing = [*command, "remove", *named, "--principal", principal, *where]
        subprocess.run(removing, stdout=subprocess.DEVNULL, check=True)


# --- franz-go -------------------------------------------------------------------------------------------------------


def build_franz(where: Path) -> Path:
    """Builds franz-go's tests so that every client logs in. Returns the program. Raises SuiteUnavailable."""
    go = shutil.which("go")
    if go is None:
        raise SuiteUnavailable("there is no Go on PATH: install it")
    named = ("list", "-m", "-f", "{{.Dir}}", "github.com/twmb/franz-go")
    _build([go, "mod", "download"], FRANZ_MODULE)
    source = where / "franz-go"
    shutil.copytree(_build([go, *named], FRANZ_MODULE).strip(), source)
    for path in (source, *source.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)  # the module cache is read-only
    helpers = source / "pkg" / "kgo" / "helpers_test.go"
    text = helpers.read_text()
    if text.count(FRANZ_TLS) != 1:
        raise SuiteUnavailable(f"{helpers} makes the options of its clients in another way: adapt FRANZ_TLS")
    helpers.write_text(text.replace(FRANZ_TLS, FRANZ_TLS + FRANZ_LOGIN))
    program = where / "kgo.test"
    _build([go, "test", "-c", "-o", str(program), "./pkg/kgo"], source)
    return program


def run_franz(program: Path, printed: Printed, *, only: str = "") -> dict[str, str]:
    """Runs the suite and returns the result of each test: pass, fail or skip."""
    login = printed.confluent
    env = {
        **os.environ,
        "KGO_SEEDS": printed.bootstrap,
        "KGO_TEST_TLS": f"ca:{login['ssl.ca.location']}",
        "KGO_TEST_SCRAM": f"{login['sasl.username']}:{login['sasl.password']}:512",
        "KGO_TEST_RECORDS": str(FRANZ_RECORDS),
        "KGO_TEST_MAX_TOPIC_PARTS": "5",
        "KGO_LOG_LEVEL": "none",
    }
    skipped = "|".join(f"^{name}$" for name in FRANZ_SKIPPED)
    options = ["-test.v", f"-test.run={only}", f"-test.skip={skipped}", f"-test.timeout={LIMIT_S:g}s"]
    said = _run([str(program), *options], program.parent / "franz-go" / "pkg" / "kgo", env, program.parent / LOG)
    found = re.findall(r"^--- (PASS|FAIL|SKIP): (\S+)", said, re.MULTILINE)
    results = {name: result.lower() for result, name in found}
    if "panic: " in said:
        results["(panic)"] = "fail"
    return results


# --- librdkafka -----------------------------------------------------------------------------------------------------


def build_librdkafka(where: Path, source: Path | None) -> Path:
    """Builds librdkafka and its tests in a copy of the checkout. Returns the program. Raises SuiteUnavailable."""
    source = source or Path(os.environ.get(LIBRDKAFKA_SOURCE) or "librdkafka")
    if not (source / "tests" / "test.c").exists():
        raise SuiteUnavailable(f"{source} is no checkout of librdkafka: set --source or {LIBRDKAFKA_SOURCE}")
    copy = where / "librdkafka"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git"), symlinks=True)
    name, old, new = LIBRDKAFKA_CHANGED
    changed = copy / "tests" / name
    changed.write_text(changed.read_text().replace(old, new))
    _build(["./configure", "--disable-gssapi", "--disable-curl"], copy)
    _build(["make", "-s", "libs"], copy)
    _build(["make", "-s", "-C", "tests", "build"], copy)
    return copy / "tests" / "test-runner"


def run_librdkafka(program: Path, printed: Printed, home: Path, *, only: str = "") -> dict[str, str]:
    """Runs the tests that need a broker, in librdkafka's quick mode, and returns the result of each test."""
    config = home / "test.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in printed.confluent.items()))
    config.chmod(0o600)
    report = home / "report.json"
    env = {
        **os.environ,
        "RDKAFKA_TEST_CONF": str(config),
        "TEST_KAFKA_VERSION": LIBRDKAFKA_BROKER_VERSION,
        "TEST_REPORT": str(report),
        "LD_LIBRARY_PATH": f"{program.parents[1] / 'src'}:{program.parents[1] / 'src-cpp'}",
    }
    options = ["-L", "-K", "-E", "-Q", f"-p{LIBRDKAFKA_JOBS}"]
    _run([str(program), *options, *([only] if only else [])], program.parent, env, home / LOG)
    return {name: test["state"].lower() for name, test in json.loads(report.read_text())["tests"].items()}


# --- programs -------------------------------------------------------------------------------------------------------


def _build(command: list[str], where: Path) -> str:
    """Runs a command to its end and returns its output. Raises SuiteUnavailable with the end of its messages."""
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SuiteUnavailable(f"{' '.join(command)} failed in {where}: {done.stderr[-2000:]}")
    return done.stdout


def _run(command: list[str], where: Path, env: dict[str, str], log: Path) -> str:
    """Runs a suite, writes its output to the file `log`, and returns the output."""
    with log.open("w") as file:
        try:
            subprocess.run(command, cwd=where, env=env, stdout=file, stderr=file, timeout=LIMIT_S + 60, check=False)
        except subprocess.TimeoutExpired:
            file.write("panic: the suite did not end in time\n")
    return log.read_text(errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.client_suites", description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=("franz-go", "librdkafka"))
    parser.add_argument("--source", type=Path, help="a checkout of librdkafka")
    parser.add_argument("--only", default="", help="tests to run: a regular expression, for librdkafka part of a name")
    parser.add_argument("--log", type=Path, help="a file for the output of the suite")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-suite-") as made:
        results = run(args.suite, Path(made), source=args.source, only=args.only)
        if args.log is not None:
            shutil.copyfile(Path(made) / LOG, args.log)
    for name, result in sorted(results.items()):
        print(f"{result:8} {name}")
    return 1 if failures(results) else 0


def run(suite: str, home: Path, *, source: Path | None = None, only: str = "") -> dict[str, str]:
    """Builds and runs one suite. Raises SuiteUnavailable."""
    if suite == "franz-go":
        program = build_franz(home)
        with secured_cluster(home) as printed:
            return run_franz(program, printed, only=only)
    program = build_librdkafka(home, source)
    with secured_cluster(home) as printed:
        return run_librdkafka(program, printed, home, only=only)


def failures(results: dict[str, str]) -> list[str]:
    return sorted(name for name, result in results.items() if result not in ("pass", "passed", "skip", "skipped"))


if __name__ == "__main__":
    sys.exit(main())
