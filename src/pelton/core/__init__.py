"""Plain data shared by every folder: configuration, requests, plans, outputs, errors.

This folder imports the standard library only and knows nothing about files, kernels or terminals.
Read `request.py` first: everything else describes a request before, during or after its life.
"""
