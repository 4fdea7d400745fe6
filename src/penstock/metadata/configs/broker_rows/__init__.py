"""The table of broker properties as text, by subject: a line of facts, then an indented line of documentation.

Text, because three hundred and sixty rows read better as a table than as calls. Only `configs/broker.py` reads it.
"""
