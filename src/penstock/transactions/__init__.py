"""Makes the decisions of the transaction coordinator for one partition of `__transaction_state`.

Pure: takes an event and the time, and returns records, answers and markers to write. Invariants: only
`TransactionShard.apply` changes durable state, both for new records and in a replay. Every change of state is listed in
`states.COMES_FROM`. A request with an old producer epoch never affects a transaction of a newer epoch. Called by
`broker.coordinators` only.
"""
