"""Grades of the conformance rules: how much depends on each.

Invariant: Relax's server keeps every rule that is not OURS, so that it can stand in place of ours.
"""

from enum import StrEnum


class Grade(StrEnum):
    """REQUIRED: without it results are wrong or lost. RELAX: clients written for Relax rely on it. OURS: beyond Relax;
    our client and trainer use it where a server has it, and do without elsewhere."""

    REQUIRED = "required"
    RELAX = "relax"
    OURS = "ours"
