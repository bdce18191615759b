"""The OpenAI-compatible chat API that agents call, in a process of its own; it keeps the exact tokens."""
