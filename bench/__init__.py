"""Penstock beside Apache Kafka: same machine, same clients, same flags, one run. `python -m bench --help`.

Both brokers are up during a comparison, so that a noisy minute hurts both; only one is loaded at a time, and each
cell is measured on one and then on the other, in turn. CPU is the broker process's own, from /proc: what a record
costs, whatever the client and the second core do. Results go to `bench/results/` as a table of ratios and as JSON
with every single measurement.
"""
