"""Record types that are stored in logs and files, not sent on the wire. `index` finds one by its type number."""
