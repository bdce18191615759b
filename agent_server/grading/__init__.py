"""From a submission to a reward."""
