"""A load generator for servers of the OpenAI API: this one's, and any other's. Start at `run.run_load`.

It is a client: it must not import the server beside it, nor an engine.
"""
