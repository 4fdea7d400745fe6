"""Declares the key of every control record."""

from penstock.protocol.schema import Message, int16


class ControlRecordTypeSchema(Message, versions="0"):
    type: int = int16()
