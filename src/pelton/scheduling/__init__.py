"""Which tokens run next, and which KV blocks they use. Imports `core` only; start at `scheduler.py`."""
