"""Which chunks share an object with others."""

# Annotations are evaluated with the class: they say what the settings take, and every process asks them.

import enum
from dataclasses import dataclass
from typing import Annotated

from icefloe.errors import InvalidInputError
from icefloe.model.config_value import Choice, ConfigValue, Count, Flag, Setting


class PackBy(enum.Enum):
    """Whose chunks may lie in one pack."""

    MIXED = "mixed"
    """Chunks of several arrays: the fewest objects."""
    ARRAY = "array"
    """Chunks of one array only: a deleted array leaves no half-used packs behind."""


@dataclass(slots=True, repr=False)
class ChunkPackingConfig(ConfigValue):
    """Small chunks of a session share objects ("packs"); larger ones are objects of their own.

    threshold_bytes  chunks of at most this size are packed (those below the inline threshold are inline anyway)
    target_bytes     a pack is closed when the next chunk would make it larger than this
    by               `PackBy.MIXED` or `PackBy.ARRAY`

    The default target keeps a pack's read in one or two requests and its write in a single put, while 4 KiB chunks
    come to about 2,000 an object. Above the default threshold the time of a request is spent on bytes rather than on
    latency, so that packing gains little and costs garbage collection its grain.

    Examples
    --------
    >>> ChunkPackingConfig(enabled=False).effective("enabled")
    False
    """

    enabled: Annotated[bool | None, Setting(Flag(), True)] = None
    threshold_bytes: Annotated[int | None, Setting(Count(0, 2**40), 256 << 10)] = None
    target_bytes: Annotated[int | None, Setting(Count(1, 2**40), 8 << 20)] = None
    by: Annotated[PackBy | None, Setting(Choice(PackBy), PackBy.MIXED)] = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse a threshold above the target: such chunks would each fill a pack of their own."""
        threshold, target = self.effective("threshold_bytes"), self.effective("target_bytes")
        if self.threshold_bytes is not None and threshold > target:
            raise InvalidInputError(
                f"ChunkPackingConfig.threshold_bytes is {threshold}, more than target_bytes {target}; "
                "allowed: at most target_bytes"
            )
