"""The command line: one file per command over the engine's public face.

It knows nothing about kernels, scheduling or file formats; it parses, calls and prints. Start at `main.main`; the
table of commands is `app.COMMANDS`.
"""
