"""Contains the actors: simulated producers, consumers, group members and administrators, which use the real client.

Each actor is a process on its own host. It adds its requests and their answers to the history of the run, which the
checks read.
"""
