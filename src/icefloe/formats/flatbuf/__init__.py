"""Flatbuffers read and written in columns, and the file layouts that both official generations share."""
