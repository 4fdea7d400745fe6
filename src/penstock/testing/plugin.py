"""The pytest plugin. It is loaded in every pytest run where Penstock is installed: it imports nothing early."""
