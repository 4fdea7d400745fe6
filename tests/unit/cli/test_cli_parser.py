"""Tests that an invalid command line is reported in one sentence, and that shared options may precede the command."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.cli.exit import Exit
from penstock.cli.main import NOUNS, WITH_VERBS, build_parser, main
from penstock.cli.parser import shared_options_last
from penstock.testing import Broker


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["topc", "list"], "penstock: there is no command 'topc': did you mean topic?"),
        (["xyzzy"], "penstock: there is no command 'xyzzy': there are up, start, check,"),
        (["topic", "lst"], "penstock topic: there is no command 'lst': did you mean list?"),
        (["topic"], "penstock topic: give one of create, list, describe, alter, trim, compact and delete"),
        (["topic", "create"], "penstock topic create: the following arguments are required: NAME"),
        (["topic", "create", "x", "--partitons=3"], "there is no option --partitons: did you mean --partitions?"),
        (["topic", "list", "a", "b"], "penstock topic list: 'b' is an extra word: the command takes no more arguments"),
        (["topic", "create", "x", "-p", "many"], "-p/--partitions: 'many' is not a whole number above zero"),
        (["topic", "create", "x", "-p", "0"], "-p/--partitions: '0' is not a whole number above zero"),
        (
            ["topic", "create", "x", "-p", "99999999999"],
            "-p/--partitions: 99999999999 is too large: the maximum is 2147483647",
        ),
        (["topic", "create", "x", "-r", "32768"], "-r/--replication-factor: 32768 is too large: the maximum is 32767"),
        (
            ["consume", "-t", "x", "-e", "-o", "99999999999999999999"],
            "-o 99999999999999999999 is too large: the maximum offset",
        ),
        (["topic", "list", "--timeout", "nan"], "--timeout: 'nan' is not a number above zero"),
        (["up", "--port", "x"], "penstock up: --port: 'x' is not a port: give a number from 0 to 65535"),
        (["consume", "-t", "x", "-p", "y"], "-p/--partition: 'y' is not a whole number"),
        (["sim", "--seed", "1", "--profile", "hostil"], "'hostil' is not one of calm, network"),
        (["-b"], "penstock: -b needs a value (`penstock --help` has more)"),
        (["--debug", "-b"], "penstock: -b needs a value"),
        (["-b", "localhost:9092"], "penstock: a command is missing: there are up, start,"),
        (["topic", "list", "-b"], "penstock topic list: -b/--bootstrap/--bootstrap-server needs a value"),
        (["topic", "list", "-b", "localhost:"], "penstock: 'localhost:' names no port: write localhost:9092"),
        (["topic", "list", "-b", ":9092"], "penstock: ':9092' names no host"),
    ],
)
def test_an_invalid_command_line_is_reported_in_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == Exit.USAGE
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert " _" not in said.err, "no internal name"
    assert said.out == ""


def test_help_works_as_a_command_and_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "topic", "create"]) == Exit.OK
    assert "usage: penstock topic create" in capsys.readouterr().out
    assert main(["help"]) == Exit.OK
    assert "produce" in capsys.readouterr().out


def test_command_line_without_a_command_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == Exit.USAGE
    assert "produce" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-b h:1 topic list x", "topic list -b h:1 x"),
        ("--bootstrap=h:1 --json topic list", "topic list --bootstrap=h:1 --json"),
        ("topic -bh:1 list", "topic list -bh:1"),
        ("-b h:1 consume -t n", "consume -b h:1 -t n"),
        ("consume -t -b", "consume -t -b"),
        ("--help", "--help"),
        ("-b", "-b"),
    ],
)
def test_shared_options_are_accepted_before_the_command(words: str, expected: str) -> None:
    assert shared_options_last(words.split(), WITH_VERBS) == expected.split()


def test_list_of_commands_with_subcommands_is_complete() -> None:
    def has_verbs(noun: str) -> bool:
        try:
            build_parser(noun).parse_args([noun, "no-such-verb"])
        except SystemExit:
            return True
        return False

    takes_words = {"start", "check", "produce"}  # a word behind these options is a file
    assert {noun for noun in NOUNS if noun not in takes_words and has_verbs(noun)} - WITH_VERBS == {
        "up",
        "consume",
        "sim",
        "events",
    }
    for noun in WITH_VERBS:
        assert has_verbs(noun)


def test_bootstrap_option_before_the_command_is_used_by_the_command(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-b", penstock_session.bootstrap, "--json", "topic", "list", "none*"]) == Exit.OK
    assert capsys.readouterr().out == "[]\n"


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Runs a server that is not a broker: it sends the same bytes to every client and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1024)
                        connection.sendall(answer)
            except OSError:
                return  # closed below

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_each_cause_of_a_failed_connection_has_its_own_error_message(capsys: pytest.CaptureFixture[str]) -> None:
    def said(bootstrap: str) -> str:
        assert main(["topic", "list", "-b", bootstrap]) == Exit.CANNOT_CONNECT
        return capsys.readouterr().err

    assert said("nosuch.invalid:9092") == (
        "penstock: the host name nosuch.invalid can't be resolved: check it in --bootstrap\n"
    )
    assert "the host name x..y can't be resolved" in said("x..y:1")
    refused = said("127.0.0.1:1")
    assert refused.startswith("penstock: nothing listens at 127.0.0.1:1: start a broker with `penstock up`")
    assert refused.count("\n") == 1
    assert "nothing listens at 127.0.0.1:1 (and 1 more)" in said("127.0.0.1:1,127.0.0.1:2")
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as web:
        assert f"{web} answered, but not as a Kafka broker does" in said(web)


def test_a_missing_topic_is_reported_with_a_similar_name(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    penstock_session.create_topic("page-views")
    where = ["--bootstrap", penstock_session.bootstrap]
    for words in (["topic", "describe", "page-view"], ["consume", "-e", "-t", "page-view"]):
        assert main([*words, *where]) == Exit.NOT_FOUND
        assert capsys.readouterr().err == "penstock: there is no topic page-view: did you mean page-views?\n"
    assert main(["topic", "describe", "qqqq", *where]) == Exit.NOT_FOUND
    assert capsys.readouterr().err == "penstock: there is no topic qqqq: `penstock topic list` shows the topics\n"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["topic", "describe", "a b"], Exit.FAILED, "a b: this is not a valid topic name"),
        (["config", "describe", "topic", "absent"], Exit.NOT_FOUND, "there is no topic absent"),
        (["txn", "describe", "absent"], Exit.NOT_FOUND, "absent: there is no such transactional id"),
        (["txn", "list", "--state", "Open"], Exit.USAGE, "there is no transaction state Open: use Empty, Ongoing"),
        (["group", "delete", "absent"], Exit.NOT_FOUND, "absent: there is no such group"),
        (["cluster", "drain", "9", "--yes"], Exit.NOT_FOUND, "the cluster has no node 9: it has node 1"),
        (["consume", "-t", "page-counts", "-p", "7"], Exit.NOT_FOUND, "has no partition 7: it has 1 partition"),
    ],
)
def test_missing_topic_group_node_or_transactional_id_is_reported_in_one_sentence(
    penstock_session: Broker, capsys: pytest.CaptureFixture[str], words: list[str], code: Exit, sentence: str
) -> None:
    with penstock_session.client() as client:
        if "page-counts" not in {topic.name for topic in client.list_topics()}:
            client.create_topic("page-counts", 1)
    assert main([*words, "--bootstrap", penstock_session.bootstrap]) == code
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["topic", "create", "u", "-c", "retention.sm=1"], ["config", "set", "topic", "t", "retention.sm=1"]]
)
def test_a_misspelt_topic_config_is_reported_with_the_nearest_name(
    words: list[str], penstock: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    penstock.create_topic("t")
    assert main([*words, "-b", penstock.bootstrap]) == Exit.FAILED
    assert "no topic config 'retention.sm': did you mean retention.ms?\n" in capsys.readouterr().err
