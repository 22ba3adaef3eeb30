"""Text to tokens and back: tokenizers, chat templates, streaming detokenizer, stop strings.

This folder knows neither models nor requests. Read `tokenizer.py` first; `gguf_vocab.py` and `tokenizer_json.py` make
tokenizers, `chat_template.py` turns messages into text.
"""
