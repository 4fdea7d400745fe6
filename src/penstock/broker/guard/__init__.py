"""Runs the guard: finds damaged or wrong replicas, repairs damaged segments, and puts faulty nodes in quarantine.

`penstock.guard` decides; this package sends the requests and acts on the decisions. Every broker examines its own
replicas and reports suspicions to the controller with its heartbeats. The active controller does not rely on these
reports: it examines the replicas itself.
"""
