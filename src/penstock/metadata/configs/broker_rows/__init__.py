"""Contains the table of broker properties as text, by subject: a line of facts, then an indented documentation line.

The table is text because three hundred and sixty rows are easier to read as a table than as calls. Only
`configs/broker.py` reads the table.
"""
