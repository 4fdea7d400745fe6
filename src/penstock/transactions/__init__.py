"""Transactions: the state machine behind one partition of `__transaction_state`.

Pure: an event and the time go in, records, answers and markers to write come out. Invariants: `TransactionShard.apply`
is the only writer of what is remembered, live and on replay alike; a change of state follows `states.COMES_FROM`; what
an earlier epoch of a producer asks for never touches a later transaction. Called by `broker.coordinators` only.
"""
