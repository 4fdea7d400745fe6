"""Implements a small Kafka client, which the command line, Spark and other nodes use. It works with Apache Kafka, too.

Invariants: every failure is a KafkaError with Kafka's code; every wait has a limit; records are built and read a batch
at a time. `client.AsyncClient` is the core (connections, metadata, routing, retries). Users call `producer`, `consumer`
and `admin`; `sync.Client` offers all three to code without an event loop.
"""
