"""A small Kafka client for the command line, Spark and other nodes; works against Apache Kafka as well.

Invariants: every failure is a KafkaError with Kafka's code; every wait has a limit; records are built and read a batch
at a time. `client.AsyncClient` is the core (connections, metadata, routing, retries). Users call `producer`, `consumer`
and `admin`; `sync.Client` offers all three to code without an event loop.
"""
