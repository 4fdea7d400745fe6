"""Transactions: the state machine behind one partition of `__transaction_state`.

Pure: takes an event and the time, returns records, answers and markers to write. Invariants: only
`TransactionShard.apply` changes durable state, for live changes and for replay; a change of state follows
`states.COMES_FROM`; a request never affects a transaction that began after the request's producer epoch was replaced.
Called by `broker.coordinators` only.
"""
