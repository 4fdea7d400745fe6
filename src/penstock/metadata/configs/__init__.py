"""What may be configured: names, types, defaults and limits of topics, brokers, groups and client metrics.

Every property is one `ConfigKey` row in a table; validation, defaults, descriptions and synonyms are all derived
from those rows, so that what is accepted, what is shown and what is used can't disagree. Values travel as Kafka's
strings and are parsed where they are used. Pure. Called by the controller (to accept), by handlers (to describe), by
logs and brokers (to obey).
"""
