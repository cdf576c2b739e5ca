"""The official generation of icechunk 2.x: refs and history in the `repo` file."""

from icefloe.formats.icechunk2.format import Icechunk2Format

FORMAT = Icechunk2Format()
