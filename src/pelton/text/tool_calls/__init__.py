"""Tool calls as text: prompts that offer tools, grammars that force a call, parsers of what a model answers.

Models write calls in different styles; each is one file with a `ToolStyle`, listed in `registry.py`. Read
`parser.py` for the stream of deltas, `prompt.py` for the way of tools into a prompt, `forced.py` for grammars.
"""
