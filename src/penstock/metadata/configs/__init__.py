"""Defines the configs of topics, brokers, groups and client metrics: names, types, defaults and limits.

Every property is one `ConfigKey` row in a table. Validation, defaults, descriptions and synonyms are all derived from
these rows, so that they cannot disagree. Values are stored as Kafka's strings and parsed where they are used. The
package is pure. Called by the controller to validate, by handlers to describe, and by logs and brokers to read values.
"""
