"""How long does a new process take to import the library, and then to open a repository and read one chunk?

`python -m benchmarks.first_chunk icefloe /path/to/repository file:///prefix/ 500` prints both as JSON. Zarr is imported
before, because both libraries need it. `benchmarks.generations` runs it for both libraries in turns.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings

import zarr


def main() -> None:
    name, place, prefix, index = sys.argv[1:5]
    warnings.simplefilter("ignore")
    clocks = [(time.perf_counter(), time.process_time())]
    library = importlib.import_module(name)
    library.Repository  # noqa: B018 - the public names are loaded with the first of them
    clocks.append((time.perf_counter(), time.process_time()))
    access = library.containers_credentials({prefix: None})
    repo = library.Repository.open(library.local_filesystem_storage(place), authorize_virtual_chunk_access=access)
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    array[int(index), int(index)]
    clocks.append((time.perf_counter(), time.process_time()))
    (a, b), (c, d), (e, f) = clocks
    print(json.dumps({"load": [c - a, d - b], "work": [e - c, f - d]}))


if __name__ == "__main__":
    main()
