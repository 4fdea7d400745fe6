"""`penstock storage` formats data directories for a broker and describes them."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import pairs, verb

if TYPE_CHECKING:
    from penstock.raft.voters import Voter
    from penstock.security.scram_arguments import ScramUser


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    form = verb(verbs, "format", "make the directories of a properties file ready for a broker", run_format)
    _where(form)
    form.add_argument("-t", "--cluster-id", help="default: a random id")
    voters = form.add_mutually_exclusive_group()
    voters.add_argument(
        "-s",
        "--standalone",
        action="store_true",
        help="a quorum of this node alone (default where FILE names no other controllers)",
    )
    voters.add_argument(
        "-I",
        "--initial-controllers",
        metavar="1@HOST:PORT:DIRECTORY_ID,…",
        help="a new quorum of these nodes: the same list on each, directory ids from random-uuid",
    )
    voters.add_argument(
        "-N", "--no-initial-controllers", action="store_true", help="a node that joins an existing quorum"
    )
    form.add_argument("-r", "--release-version", metavar="VERSION", help="the metadata.version to start with, e.g. 4.3")
    form.add_argument("-f", "--feature", action="append", default=[], metavar="NAME=LEVEL", help="a feature's level")
    form.add_argument(
        "-S",
        "--add-scram",
        action="append",
        default=[],
        metavar="MECHANISM=[name=…,password=…]",
        help="a SCRAM user of the new cluster, in Kafka's syntax; other users of the machine see arguments",
    )
    form.add_argument(
        "--add-scram-file", metavar="FILE", help="a file with one user per line, each as --add-scram takes it"
    )
    form.add_argument(
        "-g", "--ignore-formatted", action="store_true", help="keep directories that are formatted already"
    )

    info = verb(verbs, "info", "describe directories and their problems", run_info)
    _where(info)

    verb(verbs, "random-uuid", "print a new id for a cluster or directory", run_random_uuid)


def _where(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-c", "--config", metavar="FILE", help="the server.properties that names the directories")
    where.add_argument(
        "-d", "--directory", action="append", metavar="DIR", help="the directory itself; may be repeated"
    )


def run_format(args: argparse.Namespace) -> int:
    import random

    from penstock.cli.properties import read_settings
    from penstock.disk.real import RealDisk
    from penstock.metadata.configs.definition import ConfigError
    from penstock.node.clock import SystemClock
    from penstock.node.listeners import ListenerError, plan_listeners
    from penstock.node.quorum_setup import FirstVoters, plan_quorum
    from penstock.node.storage import FormatPlan, StorageError, format_storage

    node_id, directories, metadata_directory = 1, _directories(args), None
    endpoints: tuple[tuple[str, str, int], ...] = ()
    first = FirstVoters.NONE if args.no_initial_controllers else FirstVoters.ALONE
    try:
        if args.config:
            settings = read_settings(args.config)
            node_id, metadata_directory = settings.node_id, settings.optional_str("metadata.log.dir")
            plans = plan_listeners(settings)
            endpoints = tuple((plan.name, plan.advertised_host, plan.port) for plan in plans if plan.controller)
            first = plan_quorum(settings, [name for name, _, _ in endpoints]).first_voters(
                standalone=args.standalone,
                several=args.initial_controllers is not None,
                joins=args.no_initial_controllers,
            )
        initial = _voters(args.initial_controllers, endpoints[0][0] if endpoints else "CONTROLLER")
        plan = FormatPlan(
            directories,
            node_id,
            cluster_id=args.cluster_id,
            metadata_directory=metadata_directory,
            release_version=args.release_version,
            features=_levels(args.feature),
            controller_endpoints=endpoints,
            static_voters=first is FirstVoters.STATIC,
            initial_controllers=() if first is FirstVoters.NONE else initial,
            joins=first is FirstVoters.NONE,
            ignore_formatted=args.ignore_formatted,
            users=_users(args.add_scram, args.add_scram_file),
        )
        done = format_storage(RealDisk(), plan, random=random.SystemRandom(), now_ms=SystemClock().wall_ms())
    except (ConfigError, ListenerError) as problem:
        raise Failure(f"{args.config}: {problem}", Exit.USAGE) from problem
    except StorageError as problem:
        already = "already formatted" in str(problem)
        raise Failure(str(problem), Exit.EXISTS if already else Exit.STORAGE) from problem
    output.record(
        args.output,
        {
            "cluster_id": done.cluster_id,
            "node_id": node_id,
            "metadata_version": done.metadata_version,
            "formatted": list(done.directories),
        },
    )
    return Exit.OK


def run_info(args: argparse.Namespace) -> int:
    from penstock.disk.real import RealDisk
    from penstock.node.storage import storage_info
    from penstock.protocol.uuid import uuid_to_str

    info = storage_info(RealDisk(), _directories(args))
    rows = [
        {
            "directory": path,
            "cluster_id": found.cluster_id,
            "node_id": found.node_id,
            "directory_id": None if found.directory_id is None else uuid_to_str(found.directory_id),
            "formatted": True,
        }
        for path, found in info.properties.items()
    ]
    rows += [{"directory": path, "formatted": False} for path in info.directories if path not in info.properties]
    output.rows(args.output, ["directory", "formatted", "cluster_id", "node_id", "directory_id"], rows)
    for problem in info.problems:
        output.note(f"problem: {problem}")
    return Exit.STORAGE if info.problems else Exit.OK


def run_random_uuid(args: argparse.Namespace) -> int:
    import random

    from penstock.metadata.names import random_uuid
    from penstock.protocol.uuid import uuid_to_str

    made = uuid_to_str(random_uuid(random.SystemRandom()))
    if args.output == "json":
        output.record("json", {"uuid": made})
    else:
        print(made)
    return Exit.OK


def _directories(args: argparse.Namespace) -> tuple[str, ...]:
    from penstock.cli.properties import read_settings

    if args.config:
        return tuple(os.path.abspath(path) for path in read_settings(args.config).log_dirs)
    return tuple(os.path.abspath(path) for path in args.directory)


def _voters(text: str | None, listener: str) -> tuple[Voter, ...]:
    """Parses the initial voters: entries `id@host:port:directory-id` separated by commas, as in Kafka's own tool."""
    from penstock.protocol.uuid import uuid_from_str
    from penstock.raft.voters import Voter

    voters = []
    for entry in filter(None, (part.strip() for part in (text or "").split(","))):
        found = re.fullmatch(r"(\d+)@(\[[^\]]+\]|[^:@]+):(\d+):([A-Za-z0-9_-]{22})", entry)
        if found is None or int(found[3]) > 65_535:
            raise Failure(f"--initial-controllers takes ID@HOST:PORT:DIRECTORY_ID, not {entry!r}", Exit.USAGE)
        endpoint = (listener, found[2].strip("[]"), int(found[3]))
        voters.append(Voter(int(found[1]), uuid_from_str(found[4]), (endpoint,)))
    return tuple(voters)


def _users(arguments: list[str], file: str | None) -> tuple[ScramUser, ...]:
    import secrets

    from penstock.security.scram_arguments import parse_scram_user

    named = [("--add-scram", text) for text in arguments]
    if file is not None:
        try:
            lines = Path(file).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise Failure(f"--add-scram-file {file} can't be read: {problem}", Exit.USAGE) from problem
        named += [(f"{file}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    users: dict[tuple[str, int], ScramUser] = {}
    for where, text in named:
        try:
            user = parse_scram_user(text, secrets.token_bytes)
        except ValueError as problem:
            raise Failure(f"{where} can't be used: {problem}", Exit.USAGE) from None
        if (user.name, user.mechanism) in users:
            raise Failure(
                f"{where} has two {user.mechanism.label} passwords for user {user.name}: keep one of them", Exit.USAGE
            )
        users[user.name, user.mechanism] = user
    return tuple(users.values())


def _levels(texts: list[str]) -> dict[str, int]:
    levels = pairs(texts, "--feature")
    wrong = next((name for name, level in levels.items() if not level.isdigit()), None)
    if wrong is not None:
        raise Failure(f"--feature takes NAME=LEVEL with a number, not {wrong}={levels[wrong]}", Exit.USAGE)
    return {name: int(level) for name, level in levels.items()}
