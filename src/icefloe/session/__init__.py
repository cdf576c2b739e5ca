"""Sessions: a change set over a base snapshot, its commit, conflicts, rebase, and forks for distributed writes."""
