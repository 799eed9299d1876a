"""The paged key-value cache: which block belongs to which sequence."""
