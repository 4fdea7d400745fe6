"""The controller's decisions: pure functions of (image, request) that return the records to commit and the reply.

Invariants: a decision refuses or plans and changes nothing; what it reads is the image with
every record appended so far.
Callers: handlers, through MetadataLog.submit.
"""
