"""Runs the group, transaction and share coordinators of this node: state machines that are stored in a partition's log.

Each request is decided, applied to the state, appended to the log and then answered; `runtime` describes these steps.
The state machines are pure (`groups`, `transactions`, `share`). A coordinator loads when this node becomes its
partition's leader, and closes when the leadership ends. Called by handlers.
"""
