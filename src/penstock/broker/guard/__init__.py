"""Runs the guard: asks replicas what they serve and claim, refills damaged ones, and has lying nodes quarantined.

`penstock.guard` decides; this package asks and acts. Every broker examines its own replicas and reports suspicions to
the controller with its heartbeats. The active controller believes none of them: it examines the replicas itself.
"""
