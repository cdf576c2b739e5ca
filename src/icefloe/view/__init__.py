"""The viewer: a read-only web page over a repository, its JSON API, and Zarr over HTTP.

Modules
-------
- `app`: The web application: the page, the JSON API with its OpenAPI document, Zarr over HTTP, and the checks of
  requests.
- `chunk_map`: The chunk grid of an array: kind, object, size and origin of each chunk, and what two revisions
  differ in.
- `history`: Revisions of the viewed repository: refs, sessions, the commit graph, and what commits changed.
- `maintenance`: Maintenance at a glance: what expiry and garbage collection would free, and the latest operations.
- `server`: Runs the viewer: chooses the port and the token, serves in a thread or until it is interrupted, and
  shows itself.
- `slices`: Slices of arrays for a screen: what to read, how to thin it out, and how values and coordinates are
  decoded.
- `tree`: Groups and arrays: the tree, the details of a node, coordinates, and sizes on storage.
- `zarr_http`: Zarr over HTTP: the keys of a revision as a plain read-only Zarr v3 store, with ranges, ETags and
  cache headers.
"""
