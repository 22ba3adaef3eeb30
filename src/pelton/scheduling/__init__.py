"""Which tokens run next: the scheduler and the KV block pool. Imports `core` only; start at `scheduler.py`."""
