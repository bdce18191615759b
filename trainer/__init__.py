"""The GPU side: rollouts through an agent server, token traces from the gateway, updates of the policy.

Invariant: never imports agent_server; meets it only in the contract of client/.
"""
