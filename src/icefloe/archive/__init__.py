"""The immutable files of a repository: snapshots, manifests, logs, attributes; fetched through caches, flushed once."""
