"""Defines the exit codes, which scripts may rely on, and `Failure`, which carries a code and a message.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the broker refused a request, or the command failed |
| 2 | the command line or a properties file is wrong |
| 3 | no broker answers at the bootstrap address |
| 4 | the topic, partition, resource or file does not exist |
| 5 | the topic, partition, resource or file exists already |
| 6 | the data directory can't be used: locked, not formatted, damaged, full |
| 7 | the port is taken |
| 8 | no answer in time |
| 9 | the cluster answers and needs attention: `cluster status` and `cluster health` say why |
| 130 | stopped by Ctrl-C |
| 141 | the reader of the output closed the pipe |
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    CANNOT_CONNECT = 3
    NOT_FOUND = 4
    EXISTS = 5
    STORAGE = 6
    ADDRESS_IN_USE = 7
    TIMEOUT = 8
    NEEDS_ATTENTION = 9
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class Failure(Exception):
    """Raised to end a command with one sentence for the user and an exit code."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
