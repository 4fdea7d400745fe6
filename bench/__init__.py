"""Compares Penstock with Apache Kafka on the same machine, with the same clients and flags. `python -m bench --help`.

Both brokers run during a comparison, so that a noisy minute affects both; only one is loaded at a time, and each cell
is measured on both in turn. CPU is the broker process's own, from /proc: the cost of a record, independent of the
client and the second core. Results go to `bench/results/` as a table of ratios and as JSON with every measurement.
"""
