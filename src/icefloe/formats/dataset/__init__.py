"""The generation `dataset`: a state file, and Parquet for everything else."""

from __future__ import annotations

from icefloe.formats.contract import Format
from icefloe.formats.dataset.format import DatasetFormat

FORMAT: Format = DatasetFormat()
