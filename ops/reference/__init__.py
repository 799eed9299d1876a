"""What each operator means, in numpy: the definition that kernels are tested against."""
