"""Declares ZkMigrationStateRecord, the records of type 21 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, int8


class ZkMigrationStateRecord(Message, api_key=21, versions="0", flexible="0+"):
    zk_migration_state: int = int8()
