"""The command `view`: show a repository in the browser."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

import typer

from icefloe.cli.options import Authorize, Json, Repo, StorageOptions, open_repository
from icefloe.errors import UnsupportedError


def view(
    repo: Repo,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on. With another address than a loopback one, the URL contains a token.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, metavar="NUMBER", help="Port. 0 chooses a free one.")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the URL. Do not open a browser.")] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors",
            metavar="ORIGIN",
            help="Allow pages of this origin to read the API and Zarr over HTTP. * allows all. Can be repeated.",
        ),
    ] = None,
    authorize: Authorize = None,
    options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Show a repository in the browser.

    Examples
    --------
    icefloe view weather
    icefloe view s3://bucket/weather --port 8080 --no-browser
    """
    try:
        from icefloe.view.server import ViewServer  # noqa: PLC0415 - needs packages that are an extra
    except ImportError as error:
        raise UnsupportedError(
            f"the viewer needs more packages. Install them with: pip install 'icefloe[view]' ({error})"
        ) from error
    server = ViewServer(open_repository(repo, options, authorize), host, port, origins=cors or (), frames=("'none'",))
    sys.stdout.write(json_module.dumps({"url": server.url}) + "\n" if json else f"{server.url}\n")
    sys.stdout.flush()
    try:
        if not no_browser:
            server.open_browser()
        server.run()
    except KeyboardInterrupt:
        pass
