"""Actors: producers, consumers, group members and administrators that use the cluster through the real client.

Each actor is a process on a host of its own and writes into the run's history what it asked for and was answered.
"""
