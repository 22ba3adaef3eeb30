"""Make tokenizer_smollm2.json: the token ids llama.cpp gives for varied texts with the vocabulary of a GGUF file.

Needs llama-cpp-python, in an environment of its own:

    python make_tokenizer_goldens.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf

Must not use Pelton: the goldens are what Pelton is checked against.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llama_cpp import Llama

GOLDEN = Path(__file__).with_name("tokenizer_smollm2.json")
TEXTS = [
    "",
    "a",
    " a",
    "  a",
    "Hello, world!",
    "How does inference work?",
    "  leading and trailing  ",
    "\n\n\nnew\n lines\r\n\t tabs\t\t",
    "DON'T  stop\n\n  go, it's we're they've I'm you'll he'd",
    "1234567 \u00bd \u0663\u0664 3.14159 1e-10 0x1F",
    "a , b . c ? 'd' ... !",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|endoftext|> <repo_name> <file_sep>x",
    "\u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a\u6587\u3002",
    "\U0001f980\U0001f980 A\U0001f980\u6f22\u00e9 e\u0301",
    "\u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442 \u0438 \u0435\u0449\u0451",
    "a\u2029b \u3000c \u00a0d\u200b e\u0085f",
    "def f(x):\n    return x**2  # comment\n\n\nclass A:\n\tpass\n",
    '{"key": [1, 2, {"a": null}]}',
    "\u2200x\u2208\u211d: \u2308x\u2309 = \u2212\u230a\u2212x\u230b, \u03b1 \u2227 \u00ac\u03b2",
    "\uff26\uff35\uff2c\uff2c width \uff11\uff12\uff13",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8",
    "x" * 300,
    "=" * 100,
    " " * 100,
    "\n" * 50,
    "ab'cd''ef 'S 'T\u2019s",
    "http://example.org/a?b=c&d=%20#frag",
    "\u01c5ungla \u02b0 \u2082 \u2167 \u2177",
    "_snake_case_ CamelCase kebab-case",
    "\u0000\u0001\u001f\u007f",
]


def main() -> None:
    model = Llama(model_path=sys.argv[1], vocab_only=True, verbose=False)
    rows = [[text, model.tokenize(text.encode(), add_bos=False, special=True)] for text in TEXTS]
    lines = ",\n".join(json.dumps(row) for row in rows)
    GOLDEN.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
