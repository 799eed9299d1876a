"""The simulator: traces, a machine in virtual time, baselines, and what they come to."""
