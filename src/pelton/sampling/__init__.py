"""Logits -> token ids and log-probabilities, deterministically.

Knows nothing about models, batches or text. Start at `sampler.py`; `reference.py` shows what each parameter means.
"""
