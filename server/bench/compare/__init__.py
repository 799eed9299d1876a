"""The comparison with other engines: each in its own environment and process, round by round."""
