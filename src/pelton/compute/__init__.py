"""The op set and what runs it: the NumPy reference, the recorder of native programs, the native module's typed face.

Knows nothing of models, files or requests. Read `ops.py` first.
"""
