"""From a `StepPlan` to a `StepResult`: builds the batch, runs the native program, samples. Owns the KV memory.

Knows no text and no policy. Read `runner.py` first.
"""
