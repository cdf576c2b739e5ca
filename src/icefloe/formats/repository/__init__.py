"""Generation `repository` (seeds 001, 003 and 004): header, zstd and MessagePack."""

from icefloe.formats.repository.format import FORMAT as FORMAT
