"""Structured output: a `Structure` becomes a `TokenConstraint`, a mask of the tokens that may come next.

Built on llguidance, which is imported when the first structure is compiled. Read `compiler.py` first; `json_schema.py`,
`lark.py` and `regex_limits.py` check what users write, `vocabulary.py` hands over the tokenizer.
"""
