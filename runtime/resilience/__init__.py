"""Core of training that recovers from losses: when and where state is copied, and which copy is restored.

- `core.py`, to read first, decides about steps; `phases.py` has its phases. The core owns
  `version_manager.py`, which decides about versions and their copies (`versions.py`), `islands.py`, which
  chooses the replicas that run, and `loss_logs.py`. `recovery.py` chooses the version to restore,
  `disk_saves.py` the versions to save.
- `placement.py` chooses the hosts that keep copies, and the hosts that they are read from.
- `records.py` has the records that all modules share, `events.py` the input and `effects.py` the output of
  the core.

A version is the state before a step. It is *committed* when all its copies are complete and the metrics of
all steps before it were read; only committed versions are restored. The same core runs in one process, over
hosts, and in random histories of tests. `snapshots` copies state on workers, `spares` has processes that
replace lost workers. Imports `runtime.control`.
"""
