"""The cluster's metadata as a value: records build an image, and decisions turn an image and a request into records.

Invariants: only `apply` makes a new image, for live changes and for replay; an image is immutable; a decision changes
nothing, it returns records and a reply. The package uses no clock, file, socket or randomness.

Callers: broker/controlplane/metadata_log.py appends, commits and applies; handlers read the committed image.
"""
