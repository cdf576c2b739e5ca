"""Frozen values of the domain: nodes, snapshots, chunk tables, logs, configuration. No I/O, no bytes."""
