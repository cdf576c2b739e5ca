"""Real S3 servers on loopback, started by tests that need one."""
