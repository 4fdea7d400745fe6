"""Finds replicas with damaged or wrong data, and counts the findings that lead to a quarantine. Pure functions.

`broker.guard` fetches from the replicas as a consumer does, and acts on the findings. Rules: a node is accused of
different content only if the partition has at least three replicas and a majority of them agrees; a report of one node
alone never counts against another node; a wrong checksum needs no further proof.
"""
