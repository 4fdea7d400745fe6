"""Declares the control record with which a leader of the metadata quorum starts its epoch."""

from penstock.protocol.schema import Message, Struct, array, int16, int32, uuid


class Voter(Struct):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    version: int = int16()
    leader_id: int = int32()
    voters: list[Voter] = array(Voter)
    granting_voters: list[Voter] = array(Voter)
