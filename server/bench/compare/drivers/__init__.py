"""One driver an engine. `base.py` is run by the engine's own Python and loads the driver that it is told to:
nothing in this folder is imported by the server, and nothing here imports more than the standard library and
what its engine brings."""
