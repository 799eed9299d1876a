"""OpenAI's requests and responses as structs, and the one place where requests are validated."""
