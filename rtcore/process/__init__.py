"""The engine in a process of its own: messages, worker, supervisor and client."""
