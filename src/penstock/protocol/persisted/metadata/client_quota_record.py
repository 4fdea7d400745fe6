"""Declares ClientQuotaRecord, the records of type 14 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, Struct, array, boolean, float64, string


class EntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable=True)


class ClientQuotaRecord(Message, api_key=14, versions="0", flexible="0+"):
    entity: list[EntityData] = array(EntityData)
    key: str = string()
    value: float = float64()
    remove: bool = boolean()
