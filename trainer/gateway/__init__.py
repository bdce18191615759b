"""The gateway: an OpenAI-compatible chat API for agents, which records the exact tokens of every call."""
