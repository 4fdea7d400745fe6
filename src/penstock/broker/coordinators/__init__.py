"""Group and transaction coordinators: one runtime for state machines whose journal is a partition's log.

decide → apply → append → reply, as `runtime` describes. The state machines are pure (`groups`, `transactions`). A
coordinator loads when this node becomes its partition's leader and closes when the leadership ends. Called by handlers.
"""
