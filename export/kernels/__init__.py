"""GPU kernels ahead of time: which variants a graph needs, compiled for each architecture, packed into a bundle."""
