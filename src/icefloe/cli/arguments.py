"""Arguments and options that verbs share."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

Place = Annotated[str, typer.Argument(metavar="REPO", help="Path or URL of the repository.", show_default=False)]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Option of the storage, as of s3_storage(...) for s3://: region=eu-west-1, anonymous=true.",
    ),
]
TargetOptions = Annotated[
    list[str] | None, typer.Option("--target-option", metavar="NAME=VALUE", help="Option of the storage of TARGET.")
]
Branch = Annotated[str | None, typer.Option("--branch", "-b", metavar="NAME", help="At the tip of this branch.")]
Tag = Annotated[str | None, typer.Option("--tag", "-t", metavar="NAME", help="At this tag.")]
Snapshot = Annotated[
    str | None, typer.Option("--snapshot", "-s", metavar="ID", help="At this snapshot; first characters do.")
]
AsOf = Annotated[
    dt.datetime | None,
    typer.Option(
        "--as-of",
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"],
        metavar="TIME",
        help="As the branch was at this time (UTC unless it says otherwise).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, metavar="COUNT", help="Show at most so many; 0 shows all.")]
