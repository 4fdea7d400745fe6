"""The cluster's metadata as a value: records build an image, decisions turn an image and a request into records.

Invariants: `apply` is the only code that makes a new image, live and on replay alike; an image never changes once made;
a decision changes nothing, it only proposes records and a reply. No clock, file, socket or randomness in here.
Callers: broker/controlplane/metadata_log.py appends, commits and applies; handlers read the committed image.
"""
