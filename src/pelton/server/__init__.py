"""The HTTP server: a thin layer over `AsyncEngine`. Schemas, streaming, operations, and one file per route.

It must not know schedulers, kernels or files of weights. Start at `app.create_app`; `routes/__init__.py` lists the
routes and says how to add one, `generation.py` turns any protocol's request into engine calls.
"""
