"""Files beside a log."""
