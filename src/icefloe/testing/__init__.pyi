"""Tools for tests: storages that fail, wait or count, the contract of a storage, synthetic data, and a simulator."""

from icefloe.testing.storage import StorageContract as StorageContract
from icefloe.testing.storages import CountingStorage as CountingStorage
from icefloe.testing.storages import Fault as Fault
from icefloe.testing.storages import FaultKind as FaultKind
from icefloe.testing.storages import FaultPlan as FaultPlan
from icefloe.testing.storages import FaultyStorage as FaultyStorage
from icefloe.testing.storages import SimulatedStorage as SimulatedStorage
from icefloe.testing.storages import SimulatedStore as SimulatedStore
from icefloe.testing.storages import SlowStorage as SlowStorage
from icefloe.testing.synthetic_weather import write_month as write_month
from icefloe.testing.synthetic_weather import write_netcdf3 as write_netcdf3
