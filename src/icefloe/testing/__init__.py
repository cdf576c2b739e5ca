"""Tools for tests: a deterministic simulation of many actors on one repository, and storages that fail on command.

Modules
-------
- `actors`: The actors of a simulation: processes with repositories of their own, and what they do to the one
  repository.
- `event_loop`: A deterministic event loop: time is a number, and a seed decides which actor takes the next step.
- `faulty_storage`: Storages for tests: one that fails on command, one that is slow, and one that counts.
- `model`: The plain model that a simulated repository is compared with: arrays as dicts, sessions as lists of
  changes.
- `oracle`: What must be true of a simulated repository, and the watcher that finds out when it is not.
- `profiles`: Schedules: which processes take part, and which steps they take at what times, all drawn from a seed.
- `simulated_store`: A simulated object store: a clock of its own, delays, lost and repeated requests, and clients
  that die.
- `simulator`: Running schedules, shortening those that fail, and the command that looks for failures until it is
  stopped.
- `synthetic_weather`: Synthetic weather as files of several formats, the same for the same seed.
- `threads`: Threads whose switches come from a seed: real threads, of which one runs at a time.
"""
