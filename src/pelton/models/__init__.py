"""Model families: a config mapping, a weight map and a forward pass over the op set, one file each.

Knows no file format and no executor. Read `llama.py`, then `registry.py`.
"""
