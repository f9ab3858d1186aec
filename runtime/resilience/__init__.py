"""Decisions of training that goes on by itself: when state is copied, to where, and what is restored.

- `core.py` is the core, which decides about steps, and `phases.py` its phases. It owns `version_manager.py`,
  which decides about versions and their copies (`versions.py`), `islands.py`, which decides which replicas
  may run, and `loss_logs.py`. `recovery.py` decides what is restored, `disk_saves.py` what is saved to disk.
- `placement.py` decides where copies go, and from where they are read.
- `records.py` has the records that all of them share, `events.py` and `effects.py` what goes in and out.

A version is the state before a step. It is *committed* when all its copies are complete and the metrics of
all steps before it were read, and only then is it ever restored. The same core runs in one process, over
hosts, and in random histories of tests. `snapshots` copies state on workers, `spares` has processes that
replace lost ones. Imports `runtime.control`.
"""
