"""Requests as pydantic models, responses as typed dicts: one file per protocol. They hold fields and no behaviour
beyond turning themselves into the engine's types.
"""
