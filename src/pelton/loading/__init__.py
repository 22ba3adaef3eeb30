"""Files to `ModelConfig`, weights and tokenizer; and where files come from.

Knows formats and places, not how a model runs. Read `model.py` first.
"""
