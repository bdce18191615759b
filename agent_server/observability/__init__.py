"""Events, metrics, logs and alarms."""
