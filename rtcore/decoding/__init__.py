"""How tokens are chosen: parameters and the sampler."""
