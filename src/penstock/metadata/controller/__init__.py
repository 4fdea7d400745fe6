"""Makes the controller's decisions: pure functions of (image, request) return the records to commit and the reply.

Invariants: a decision refuses the request or returns records, and changes nothing itself; the image that it reads
includes every appended record, committed or not. Called by handlers, through MetadataLog.submit.
"""
