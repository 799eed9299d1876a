"""GPU kernels of the operators, in Triton: compiled ahead of time by `export.kernels`, unknown to serving."""
