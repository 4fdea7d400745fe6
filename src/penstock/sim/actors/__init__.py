"""Contains the actors: producers, consumers, group members and administrators that use the cluster with the real
client.

Each actor is a process on its own host. It writes its requests and their answers into the run's history.
"""
