"""Every verb of the command: where it lives and what it does, in the order in which help shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LOOK = "Look"
CHANGE = "Change"
DATA = "Bring in and take out"
CARE = "Take care"


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb before its module is loaded."""

    module: str
    summary: str
    """The first line of its help; a test holds both together."""
    heading: str


VERBS: Mapping[str, Verb] = {
    "info": Verb("icefloe.cli.info", "What a repository is and holds, at a glance.", LOOK),
    "tree": Verb("icefloe.cli.tree", "Groups and arrays as a tree.", LOOK),
    "ls": Verb("icefloe.cli.ls", "What is in a group, or the chunks of an array.", LOOK),
    "cat": Verb("icefloe.cli.cat", "Print a key's bytes, a group's document or the values of an array.", LOOK),
    "log": Verb("icefloe.cli.log", "Commits, newest first; with --graph all branches as a drawing.", LOOK),
    "show": Verb("icefloe.cli.show", "One commit: who, when, why, and what it changed.", LOOK),
    "diff": Verb("icefloe.cli.diff", "What changed between two points of history.", LOOK),
    "stats": Verb("icefloe.cli.stats", "Chunks by kind, objects and bytes, per array.", LOOK),
    "manifests": Verb("icefloe.cli.manifests", "Which arrays sit in which manifest, with sizes and extents.", LOOK),
    "sql": Verb("icefloe.cli.sql", "Query arrays and metadata with Spark SQL.", LOOK),
    "create": Verb("icefloe.cli.create", "Make a new repository.", CHANGE),
    "branch": Verb("icefloe.cli.branch", "List, create or delete branches.", CHANGE),
    "tag": Verb("icefloe.cli.tag", "List, create or delete tags.", CHANGE),
    "reset": Verb("icefloe.cli.reset", "Point a branch at another snapshot.", CHANGE),
    "config": Verb("icefloe.cli.config", "Show or change the configuration kept in a repository.", CHANGE),
    "ingest": Verb("icefloe.cli.ingest", "Ingest NetCDF, HDF5, Zarr and other files with one commit, on Spark.", DATA),
    "export": Verb(
        "icefloe.cli.export", "Write a snapshot, or a part of it, as plain Zarr, Parquet or another repository.", DATA
    ),
    "demo": Verb(
        "icefloe.cli.demo", "Make a month of weather, ingest it on Spark, branch, travel back, draw a picture.", DATA
    ),
    "convert": Verb(
        "icefloe.cli.convert",
        "Make a repository of another generation, with all its history, elsewhere or in its place.",
        CARE,
    ),
    "merge": Verb("icefloe.cli.merge", "Merge a branch into another; pick, revert or squash commits.", CHANGE),
    "expire": Verb("icefloe.cli.expire", "Take old snapshots out of history; `gc` then frees their files.", CARE),
    "gc": Verb("icefloe.cli.gc", "Delete what no branch or tag leads to and what is old enough.", CARE),
    "compact": Verb(
        "icefloe.cli.compact", "Pack small chunks together, drop dead bytes, or undo that; data stay as they are.", CARE
    ),
    "materialize": Verb(
        "icefloe.cli.materialize",
        "Copy virtual chunks into a repository, so that it no longer needs the files they lie in.",
        CARE,
    ),
    "rewrite-manifests": Verb(
        "icefloe.cli.rewrite", "Pack the manifests of a branch anew, after the configuration.", CARE
    ),
    "analyze": Verb(
        "icefloe.cli.analyze",
        "Find and keep minimum, maximum and counts of every chunk that has none yet, on Spark.",
        CARE,
    ),
    "mirror": Verb(
        "icefloe.cli.mirror", "Make another place a copy of a repository; again, only what is new is copied.", CARE
    ),
    "verify": Verb(
        "icefloe.cli.verify",
        "Check that all a repository holds is there and is whole; exits with 1 when it is not.",
        CARE,
    ),
}
