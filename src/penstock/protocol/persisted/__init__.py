"""Declares record types that are stored in logs and files, not sent to clients. `index` finds a type by its number."""
