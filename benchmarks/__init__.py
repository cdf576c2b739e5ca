"""Measurements side by side with the official package: `python3 dev.py bench`."""
