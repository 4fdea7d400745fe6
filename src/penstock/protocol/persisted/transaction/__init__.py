"""Declares the records of `__transaction_state`, and the marker that ends a transaction in a partition."""
