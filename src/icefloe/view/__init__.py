"""The viewer: a read-only web page over a repository, its JSON API, and Zarr over HTTP.

Modules
-------
- `revisions`: Revisions of the viewed repository: refs, the commit graph, what commits changed, and their groups
  and arrays.
- `server`: Runs the viewer: chooses the port and the token, serves in a thread or until it is interrupted, and
  shows itself.
- `slices`: Slices of arrays for a screen: what to read, how to thin it out, and how values and coordinates are
  decoded.
- `storage_use`: Where the bytes are: sizes, growth over commits, the chunk grid, changed chunks, and what
  maintenance would free.
- `web_app`: The web application: the page, the JSON API with its OpenAPI document, Zarr over HTTP, and the checks
  of requests.
"""
