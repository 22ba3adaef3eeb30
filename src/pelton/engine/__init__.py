"""The engine: one step of it (`core.py`), and the blocking interface of the library (`llm.py`, start there)."""
