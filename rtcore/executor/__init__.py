"""One executor a provider: it owns the session and the cache memory and runs one packed step."""
