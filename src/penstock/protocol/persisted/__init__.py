"""Record types that live in logs and files rather than on the wire; `index` finds one by its type number."""
