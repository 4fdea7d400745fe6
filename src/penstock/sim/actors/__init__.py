"""Actors: producers, consumers, group members and administrators that use the cluster through the real client.

Each actor is a process on a host of its own. It writes its requests and the answers to them into the run's history.
"""
