"""The one mutable thing of a repository: refs and history, one short module per generation."""
