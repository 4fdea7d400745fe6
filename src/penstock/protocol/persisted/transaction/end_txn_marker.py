"""Declares the control record (marker) that ends a transaction in a partition."""

from penstock.protocol.schema import Message, int32


class EndTxnMarker(Message, versions="0"):
    coordinator_epoch: int = int32()
