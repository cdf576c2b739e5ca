"""Bytes by key, with conditions: the only room that imports obstore."""
