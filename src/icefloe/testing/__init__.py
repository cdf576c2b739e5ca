"""A deterministic simulation of many actors on one repository.

* `simulator`: schedules from a seed, running and shortening them, the command that runs until stopped
* `profiles`: which processes take part and what they do, drawn from a seed
* `actors`: simulated processes, and everything they do to a repository
* `oracle`: what must be true, checked whenever a branch moves and at the end
* `model`: the plain model of arrays, chunks and changes that the engine is compared with
* `simulated_store`: an object store with a clock of its own, delays, losses, repetitions and clients that die
* `event_loop`: an event loop whose time is a number and whose order comes from a seed
"""
