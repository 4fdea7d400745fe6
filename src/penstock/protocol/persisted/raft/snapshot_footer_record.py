"""Declares the control record that is the last record of a snapshot."""

from penstock.protocol.schema import Message, int16


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    version: int = int16()
