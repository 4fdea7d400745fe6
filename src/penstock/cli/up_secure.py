"""`penstock up --secure` gives a local cluster TLS, users and ACLs, and writes the files that its clients need."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.cli.exit import Exit, Failure

if TYPE_CHECKING:
    from penstock.metadata.image import AclImage
    from penstock.node.local_security import LocalSecurity
    from penstock.security.scram_arguments import ScramUser


@dataclass(frozen=True, slots=True)
class Secured:
    """Holds the settings that --secure adds to the nodes. The defaults describe a cluster without --secure."""

    listener: str = "PLAINTEXT"
    properties: dict[str, str] = field(default_factory=dict, repr=False)
    users: tuple[ScramUser, ...] = ()
    acls: tuple[AclImage, ...] = ()
    #: Is called with the address of the started cluster.
    print_clients: Callable[[str], None] | None = None


@contextmanager
def security_of(args: argparse.Namespace, directory: str, first_node: str) -> Iterator[Secured]:
    """Yields the security settings for the options of the command line.

    The certificates and passwords are in `directory`, outside of the log directories, because Kafka refuses unknown
    files there. The files of an ephemeral cluster are temporary. `first_node` is the data directory of the first node.
    """
    if args.ephemeral and args.secure:
        with tempfile.TemporaryDirectory(prefix="penstock-secure-") as made:
            yield _secured(args, made)
        return
    if not args.ephemeral:
        _check(directory, first_node, secure=args.secure)
    yield _secured(args, directory) if args.secure else Secured()


def _check(directory: str, first_node: str, *, secure: bool) -> None:
    """Raises Failure if --secure is missing for data that was made with it, or given for data made without it."""
    from penstock.node.local_security import is_there

    formatted = os.path.exists(os.path.join(first_node, "meta.properties"))
    if formatted and is_there(directory) and not secure:
        raise Failure(f"the data in {first_node} belongs to a secured cluster: add --secure", Exit.USAGE)
    if secure and formatted and not is_there(directory):
        raise Failure(
            f"the data in {first_node} was made without --secure and has no users: choose another --data, or secure "
            "the cluster by the steps in docs/operations.md",
            Exit.USAGE,
        )


def _secured(args: argparse.Namespace, directory: str) -> Secured:
    from penstock.node.local_security import LISTENER, app_acls, local_security

    try:
        security = local_security(directory, args.host)
    except ImportError as problem:
        raise Failure(
            "--secure makes certificates with the package cryptography: run pip install 'penstock[tls]'", Exit.USAGE
        ) from problem
    except (OSError, ValueError) as problem:
        raise Failure(f"{directory} can't be used: {problem}", Exit.STORAGE) from problem
    return Secured(
        LISTENER,
        security.properties(),
        security.users(),
        app_acls(),
        partial(_print_clients, directory, security, args.output),
    )


def _print_clients(directory: str, security: LocalSecurity, how: str, bootstrap: str) -> None:
    """Writes the clients' files, and prints how clients connect: for Kafka's tools, confluent-kafka and Spark."""
    from penstock.node.local_security import ADMIN, APP, client_properties, librdkafka_properties, write_client_files

    paths = write_client_files(directory, security, bootstrap)
    java, rdkafka = (make(security, bootstrap, APP) for make in (client_properties, librdkafka_properties))
    spark = {f"kafka.{name}": value for name, value in java.items()}
    if how == "json":
        told = {"client_properties": paths[APP], "admin_properties": paths[ADMIN], "confluent": rdkafka, "spark": spark}
        print(json.dumps(told), flush=True)
        return
    lines = [
        f"# {paths[APP]}: the application user, for Kafka's tools and --command-config; the admin: {paths[ADMIN]}",
        *(f"{name}={value}" for name, value in java.items()),
        "# confluent-kafka",
        json.dumps(rdkafka, indent=4),
        "# Spark",
        *(f".option({json.dumps(name)}, {json.dumps(value)})" for name, value in spark.items()),
    ]
    print("\n".join(lines), flush=True)
