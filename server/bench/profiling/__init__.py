"""One step taken apart: the host's stages, and the operators of the graph with their floors."""
