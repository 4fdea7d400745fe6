"""Represents the cluster's metadata as an image. Records build the image; decisions read it and return new records.

Invariants: only `apply` makes a new image, for live changes and for replay; an image is immutable; a decision changes
nothing, it returns records and a reply. The package uses no clock, file, socket or randomness.

Called by broker/controlplane/metadata_log.py, which appends, commits and applies the records, and by handlers, which
read the committed image.
"""
