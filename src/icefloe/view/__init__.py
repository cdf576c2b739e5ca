"""The viewer: a read-only web page over a repository, its JSON API, and Zarr over HTTP.

Modules
-------
- `revisions`: Revisions of the viewed repository: refs, sessions, the commit graph, and what commits changed.
- `server`: Runs the viewer: chooses the port and the token, serves in a thread or until it is interrupted, and
  shows itself.
- `slices`: Slices of arrays for a screen: what to read, how to thin it out, and how values and coordinates are
  decoded.
- `storage_use`: Where the bytes are: sizes, growth over commits, the chunk grid, changed chunks, and what
  maintenance would free.
- `tree`: Groups and arrays: the tree, the details of a node, its coordinates and its size on storage.
- `web_app`: The web application: the page, the JSON API with its OpenAPI document, Zarr over HTTP, and the checks
  of requests.
- `zarr_http`: Zarr over HTTP: the keys of a revision as a plain read-only Zarr v3 store, with ranges, ETags and
  cache headers.
"""
