"""Record types that are stored in logs and files, not sent to clients. `index` finds a record type by its number."""
