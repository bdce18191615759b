"""The GPU side: rollouts through an agent server, token traces from the gateway, updates of the policy.

Invariant: it never imports agent_server. The two share only the contract in client/.
"""
