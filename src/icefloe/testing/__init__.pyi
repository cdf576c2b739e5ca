"""Tools for tests: storages that fail, wait or count, the contract of a storage, synthetic data, and a simulator."""

from icefloe.testing.faulty_storage import CountingStorage as CountingStorage
from icefloe.testing.faulty_storage import Fault as Fault
from icefloe.testing.faulty_storage import FaultKind as FaultKind
from icefloe.testing.faulty_storage import FaultPlan as FaultPlan
from icefloe.testing.faulty_storage import FaultyStorage as FaultyStorage
from icefloe.testing.faulty_storage import SlowStorage as SlowStorage
from icefloe.testing.simulated_store import SimulatedStorage as SimulatedStorage
from icefloe.testing.simulated_store import SimulatedStore as SimulatedStore
from icefloe.testing.storage import StorageContract as StorageContract
from icefloe.testing.synthetic_weather import write_month as write_month
from icefloe.testing.synthetic_weather import write_netcdf3 as write_netcdf3
