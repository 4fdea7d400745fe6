"""Group and transaction coordinators: one runtime for state machines whose journal is a partition's log.

decide → append → apply → reply, as `runtime` describes. The machines are pure (`groups`, `transactions`); a
coordinator loads when this node becomes its partition's leader and is dropped when it stops. Called by handlers.
"""
