"""The paged KV cache's bookkeeping: blocks and block tables."""
