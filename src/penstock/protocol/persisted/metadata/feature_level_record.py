"""Declares FeatureLevelRecord, the records of type 12 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, int16, string


class FeatureLevelRecord(Message, api_key=12, versions="0", flexible="0+"):
    name: str = string()
    feature_level: int = int16()
