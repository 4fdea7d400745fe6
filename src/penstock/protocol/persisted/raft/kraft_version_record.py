"""Declares the control record with the version of the quorum protocol (kraft.version)."""

from penstock.protocol.schema import Message, int16


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    version: int = int16()
    kraft_version: int = int16()
