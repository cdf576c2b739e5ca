"""The official generation of icechunk 0.2 to 1.x: refs in `ref.json` files."""

from icefloe.formats.icechunk1.format import Icechunk1Format

FORMAT = Icechunk1Format()
