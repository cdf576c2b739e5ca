"""Bytes to model and back, pure: one folder per generation, a shared header, a registry."""
