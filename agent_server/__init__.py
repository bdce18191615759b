"""Agent server, the CPU side: leases task rows, runs agents in sandboxes, grades their submissions.

Invariant: installs and runs without torch, vLLM or the trainer.
"""
