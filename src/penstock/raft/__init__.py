"""The metadata quorum as a function: `Raft.step(event, now_ms)` changes its own state and returns effects to carry out.

Invariants: one leader an epoch; no message leaves before the vote it speaks of is on disk; a follower's fetch offset
and a leader's own share of a majority are fsynced; what is below the high watermark is never cut. No clock, file,
socket or randomness in here. Caller: whoever owns the log and the connections, one step at a time, effects in order.
"""
