"""llama.cpp behind a pipe: holds a model loaded and times what the commands on standard input ask for.

Runs in llama.cpp's own environment (`llama-cpp-python`) and imports nothing of Pelton. One JSON object a line comes in,
one goes out; `protocol.py` lists them. Start at `LlamaCppEngine`.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from protocol import Engine, random_token_ids, serve

BATCH_TOKENS = 512
_GGML_TYPE_F16 = 1


class Context:
    """One llama.cpp context with a batch of its own; room for `num_seqs` sequences of `max_tokens` each."""

    def __init__(self, model: object, arguments: argparse.Namespace, max_tokens: int, num_seqs: int) -> None:
        params = llama_cpp.llama_context_default_params()
        # llama.cpp pads the cache to a multiple of 256 a sequence; asking for that keeps its shapes regular.
        params.n_ctx = -(-max_tokens // 256) * 256 * num_seqs
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = num_seqs
        params.n_threads = params.n_threads_batch = arguments.threads
        params.type_k = params.type_v = _GGML_TYPE_F16
        params.kv_unified = arguments.kv_unified
        params.no_perf = True
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if arguments.flash_attention
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self.handle = llama_cpp.llama_init_from_model(model, params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp made no context for {num_seqs} sequences of {max_tokens} tokens")
        self.max_tokens, self.num_seqs = max_tokens, num_seqs
        self.memory = llama_cpp.llama_get_memory(self.handle)
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, num_seqs)
        self.num_cached = 0

    def put(self, row: int, token_id: int, position: int, seq: int, *, wants_logits: bool) -> None:
        """Fill row `row` of the batch."""
        batch = self.batch
        batch.token[row], batch.pos[row], batch.logits[row] = token_id, position, wants_logits
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, seq

    def decode(self, num_rows: int) -> None:
        """Compute the first `num_rows` rows of the batch and wait for the result."""
        self.batch.n_tokens = num_rows
        status = llama_cpp.llama_decode(self.handle, self.batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        llama_cpp.llama_synchronize(self.handle)

    def clear(self) -> None:
        """Forget all sequences."""
        llama_cpp.llama_memory_clear(self.memory, False)
        self.num_cached = 0

    def prefill(self, token_ids: Sequence[int], start: int = 0) -> None:
        """Compute `token_ids` at positions from `start` on in sequence 0; logits of the last one only."""
        for first in range(0, len(token_ids), BATCH_TOKENS):
            chunk = token_ids[first : first + BATCH_TOKENS]
            for row, token_id in enumerate(chunk):
                is_last = first + row + 1 == len(token_ids)
                self.put(row, token_id, start + first + row, 0, wants_logits=is_last)
            self.decode(len(chunk))

    def logits(self, num_rows: int, vocab_size: int) -> np.ndarray:
        """Return a view [num_rows, vocab] f32 of the logits of the last batch."""
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.handle), shape=(num_rows, vocab_size))


class LlamaCppEngine(Engine):
    """A loaded model with a context for one sequence and one, made when first needed, for several."""

    name = "llama.cpp"

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        begin = time.perf_counter()
        self._log = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(arguments.model).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {arguments.model}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self._contexts: dict[int, Context] = {}
        self._load_s = time.perf_counter() - begin

    def describe(self) -> dict[str, object]:
        return {
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "system_info": llama_cpp.llama_print_system_info().decode().strip(),
            "flash_attention": self._arguments.flash_attention,
            "kv_unified": self._arguments.kv_unified,
            "n_batch": BATCH_TOKENS,
            "n_ubatch": BATCH_TOKENS,
            "threads": self._arguments.threads,
            "load_s": self._load_s,
        }

    def _context(self, num_seqs: int, max_tokens: int) -> Context:
        context = self._contexts.get(num_seqs)
        if context is None or context.max_tokens < max_tokens:
            if context is not None:
                llama_cpp.llama_free(context.handle)
            context = self._contexts[num_seqs] = Context(self.model, self._arguments, max_tokens, num_seqs)
        return context

    def _go_to_depth(self, context: Context, depth: int) -> None:
        """Have exactly the first `depth` tokens cached, computing them only if an earlier test has not."""
        if depth and context.num_cached >= depth:
            llama_cpp.llama_memory_seq_rm(context.memory, 0, depth, -1)
        else:
            context.clear()
            context.prefill(random_token_ids(depth, self.vocab_size))
        context.num_cached = depth

    def prefill(self, num_tokens: int, depth: int) -> float:
        context = self._context(1, depth + num_tokens)
        self._go_to_depth(context, depth)
        token_ids = random_token_ids(depth + num_tokens, self.vocab_size)[depth:]
        begin = time.perf_counter()
        context.prefill(token_ids, depth)
        return time.perf_counter() - begin

    def decode(self, num_new_tokens: int, depth: int, num_seqs: int) -> float:
        context = self._context(num_seqs, depth + num_new_tokens)
        if num_seqs > 1 and depth:
            raise ValueError("several sequences are measured at depth 0 only")
        self._go_to_depth(context, depth)
        token_ids = random_token_ids(num_new_tokens * num_seqs, self.vocab_size)
        begin = time.perf_counter()
        for i in range(num_new_tokens):
            for seq in range(num_seqs):
                context.put(seq, token_ids[i * num_seqs + seq], depth + i, seq, wants_logits=True)
            context.decode(num_seqs)
        return time.perf_counter() - begin

    def tokenize(self, text: str) -> list[int]:
        data = text.encode()
        buffer = (llama_cpp.llama_token * (len(data) + 8))()
        # Special tokens are added but not looked for in the text: what llama-perplexity does.
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), buffer, len(buffer), True, False)
        if count < 0:
            raise RuntimeError(f"llama_tokenize returned {count}")
        return list(buffer[:count])

    def perplexity(self, text: str, num_context: int) -> dict[str, object]:
        """llama.cpp's convention: windows one after another, BOS first where wanted, second halves scored."""
        token_ids = self.tokenize(text)
        context = self._context(1, num_context)
        bos = llama_cpp.llama_vocab_bos(self.vocab) if llama_cpp.llama_vocab_get_add_bos(self.vocab) else None
        first = num_context // 2
        total, count, num_windows = 0.0, 0, len(token_ids) // num_context
        for window in range(num_windows):
            ids = token_ids[window * num_context : (window + 1) * num_context]
            fed = ids if bos is None else [bos, *ids[1:]]
            context.clear()
            for start in range(0, num_context, BATCH_TOKENS):
                chunk = fed[start : start + BATCH_TOKENS]
                for row, token_id in enumerate(chunk):
                    context.put(row, token_id, start + row, 0, wants_logits=True)
                context.decode(len(chunk))
                logits = context.logits(len(chunk), self.vocab_size)
                for row in range(max(first - start, 0), min(len(chunk), num_context - 1 - start)):
                    total -= log_softmax_at(logits[row], ids[start + row + 1])
                    count += 1
        return {
            "perplexity": float(np.exp(total / count)) if count else float("nan"),
            "windows": num_windows,
            "tokens": count,
            "token_ids": token_ids,
        }


def log_softmax_at(row: np.ndarray, token_id: int) -> float:
    """Natural log-probability of one token, in double precision."""
    values = row.astype(np.float64)
    top = values.max()
    return float(values[token_id] - top - np.log(np.exp(values - top).sum()))


def main() -> None:
    """Parse the options, load the model, serve commands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--flash-attention", action="store_true")
    parser.add_argument("--kv-unified", action="store_true")
    arguments = parser.parse_args()
    serve(lambda: LlamaCppEngine(arguments))


if __name__ == "__main__":
    main()
