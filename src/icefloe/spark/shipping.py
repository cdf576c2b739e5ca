"""This package sent to executors that do not have it."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

import icefloe
from icefloe.spark.connection import is_classic
from icefloe.version import __version__

_ENDINGS = (".py", ".properties", ".typed")


def pack_package(folder: str | Path) -> Path:
    """The package as a zip file that Spark puts on the Python path of its workers."""
    root = Path(icefloe.__file__).resolve().parent
    target = Path(folder) / f"icefloe-{__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.suffix in _ENDINGS:
                archive.write(path, Path("icefloe") / path.relative_to(root))
    return target


def ship_package(spark: SparkSession) -> None:
    """Give this version of the package to every worker of a session, on a cluster or behind Spark Connect.

    Only its Python files travel: the packages it needs (zarr, obstore, pyarrow, ...) must be in the workers' Python.

    Examples
    --------
    >>> spark = connect("spark://host:7077")  # doctest: +SKIP
    >>> ship_package(spark)  # doctest: +SKIP
    """
    with tempfile.TemporaryDirectory() as folder:
        archive = str(pack_package(folder))
        if is_classic(spark):
            # Workers fetch the file when their first task starts: it must outlive this function.
            kept = Path(tempfile.mkdtemp(prefix="icefloe-package-")) / Path(archive).name
            Path(archive).replace(kept)
            spark.sparkContext.addPyFile(str(kept))
        else:
            spark.addArtifacts(archive, pyfile=True)
