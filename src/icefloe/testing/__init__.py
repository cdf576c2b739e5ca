"""Tools for tests of Icefloe, of storages, and of programs that use Icefloe.

The public names are listed in `__init__.pyi`:

* `StorageContract`: the contract of a storage as tests. Subclass it to test a storage of your own. Needs pytest.
* `CountingStorage`, `SlowStorage`, `FaultyStorage`: storages in front of another one. They count requests and bytes,
  delay every request, or fail and die as a `FaultPlan` says.
* `SimulatedStore`, `SimulatedStorage`: an object store with its own clock, delays and lost requests.
* `write_month`, `write_netcdf3`: synthetic data files.

The engine never imports this package.

Modules
-------
- `actors`: The actors of a simulation: processes with repositories of their own, and what they do to the one
  repository.
- `model`: The plain model that a simulated repository is compared with: arrays as dicts, sessions as lists of
  changes.
- `oracle`: What must be true of a simulated repository, and the watcher that finds out when it is not.
- `profiles`: Schedules: which processes take part, and which steps they take at what times, all drawn from a seed.
- `schedule`: The order of events in a simulation: an event loop on simulated time, and threads that take turns.
- `simulator`: Running schedules, shortening those that fail, and the command that looks for failures until it is
  stopped.
- `storage`: The contract of a storage as tests that anyone's storage can run. Needs pytest.
- `storages`: Storages for tests: one that fails on command, one that is slow, one that counts, and a simulated
  object store.
- `synthetic_weather`: Synthetic weather as files of several formats, the same for the same seed.
"""

import sys

from icefloe.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)

if "pytest" in sys.modules:
    # Failed assertions of the contract then show their values, as those of test modules do.
    sys.modules["pytest"].register_assert_rewrite("icefloe.testing.storage")
