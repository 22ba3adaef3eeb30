"""Make the model goldens: logits and greedy tokens of `transformers` (float32, CPU) for the weights of GGUF files.

Needs torch, transformers and gguf, in an environment of their own:

    python make_model_goldens.py tiny                       # tiny_llama.npz: the random models of golden_cases.py
    python make_model_goldens.py smollm2 path/to/model.gguf # smollm2.json: the default model, dequantised

Must not use Pelton: the goldens are what Pelton is checked against. Start at `build_transformers_model`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "models"))

from golden_cases import GOLDEN_CASES, SMOLLM2_GOLDENS, TINY_GOLDENS, GoldenCase, hash_weights
from random_gguf import RandomLlama, RandomRope, make_tensors

SMOLLM2_PROMPTS = {
    "chat": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nHow does inference work?<|im_end|>\n<|im_start|>assistant\n",
    "prose": "The river had been rising for three days. On the morning of the fourth, the miller looked out of his "
    "window and saw that the bridge was gone. He called to his daughter, who was feeding the hens, and told her",
    "code": 'def count_words(text: str) -> dict[str, int]:\n    """Return how often each word occurs in text."""\n'
    "    counts: dict[str, int] = {}\n    for word in text.split():\n",
}
NUM_SMOLLM2_GREEDY = 48
NUM_TOP_LOGITS = 5


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Turn GGUF's row order of Q or K (pairs adjacent) into that of transformers (halves of each head)."""
    rows, cols = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def build_transformers_model(config: LlamaConfig, tensors: Mapping[str, np.ndarray]) -> LlamaForCausalLM:
    """Return an eval-mode float32 model holding `tensors` (GGUF names, f32)."""
    state = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
    }
    state["lm_head.weight"] = tensors.get("output.weight", tensors["token_embd.weight"])
    for i in range(config.num_hidden_layers):
        source, target = f"blk.{i}.", f"model.layers.{i}."
        state[target + "self_attn.q_proj.weight"] = unpermute(
            tensors[source + "attn_q.weight"], config.num_attention_heads
        )
        state[target + "self_attn.k_proj.weight"] = unpermute(
            tensors[source + "attn_k.weight"], config.num_key_value_heads
        )
        state[target + "self_attn.v_proj.weight"] = tensors[source + "attn_v.weight"]
        state[target + "self_attn.o_proj.weight"] = tensors[source + "attn_output.weight"]
        state[target + "mlp.gate_proj.weight"] = tensors[source + "ffn_gate.weight"]
        state[target + "mlp.up_proj.weight"] = tensors[source + "ffn_up.weight"]
        state[target + "mlp.down_proj.weight"] = tensors[source + "ffn_down.weight"]
        state[target + "input_layernorm.weight"] = tensors[source + "attn_norm.weight"]
        state[target + "post_attention_layernorm.weight"] = tensors[source + "ffn_norm.weight"]
    model = LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()}, strict=True)
    return model.eval()


def describe_rope(rope: RandomRope) -> dict[str, Any]:
    """Return the `rope_parameters` of transformers that mean the same as `rope`."""
    parameters: dict[str, Any] = {"rope_theta": rope.theta, "rope_type": "default"}
    if rope.scaling != "none":
        parameters |= {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling in ("llama3", "yarn"):
        parameters["original_max_position_embeddings"] = rope.original_context
    if rope.scaling == "llama3":
        parameters |= {"low_freq_factor": rope.low, "high_freq_factor": rope.high}
    return parameters


def make_config(model: RandomLlama) -> LlamaConfig:
    """Return the transformers configuration of a random model."""
    return LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=model.max_context,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=model.is_tied,
        rope_parameters=describe_rope(model.rope),
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=0,
        eos_token_id=1,
        attn_implementation="eager",
    )


@torch.no_grad()
def compute_logits(model: LlamaForCausalLM, token_ids: Sequence[int]) -> np.ndarray:
    """Return logits [T, vocab] f32 of all positions, computed in one pass without a cache."""
    return model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0].numpy()


def continue_greedily(model: LlamaForCausalLM, token_ids: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """Return `count` most likely next tokens and, for each, by how much its logit beats the second best."""
    ids, margins = list(token_ids), []
    for _ in range(count):
        last = compute_logits(model, ids)[-1]
        second, first = np.argsort(last, kind="stable")[-2:]
        margins.append(float(last[first] - last[second]))
        ids.append(int(first))
    return ids[len(token_ids) :], margins


def check_rope_matters(case: GoldenCase, tensors: Mapping[str, np.ndarray], logits: np.ndarray) -> None:
    """Raise if leaving the RoPE scaling out would hardly change the golden, which would then prove nothing."""
    if case.model.rope.scaling == "none":
        return
    plain = RandomRope(theta=case.model.rope.theta)
    config = make_config(case.model)
    config.rope_parameters = describe_rope(plain)
    difference = np.abs(compute_logits(build_transformers_model(config, tensors), case.get_token_ids()) - logits)
    if difference.max() < 0.1 * logits.std():
        raise RuntimeError(f"{case.name}: RoPE scaling changes the logits by {difference.max():.4f} only")


def make_tiny_goldens() -> None:
    """Write tiny_llama.npz."""
    arrays: dict[str, np.ndarray] = {}
    for case in GOLDEN_CASES:
        tensors = {t.name: t.dequantize() for t in make_tensors(case.model)}
        model = build_transformers_model(make_config(case.model), tensors)
        token_ids = case.get_token_ids()
        logits = compute_logits(model, token_ids)
        check_rope_matters(case, tensors, logits)
        greedy_ids, margins = continue_greedily(model, token_ids, case.num_greedy)
        arrays |= {
            f"{case.name}/weights_sha256": np.array(hash_weights(case.model)),
            f"{case.name}/token_ids": np.array(token_ids, np.int32),
            f"{case.name}/positions": np.array(case.get_positions(), np.int32),
            f"{case.name}/logits": logits[case.get_positions()],
            f"{case.name}/greedy_ids": np.array(greedy_ids, np.int32),
            f"{case.name}/greedy_margins": np.array(margins, np.float32),
        }
        print(f"{case.name}: logits std {logits.std():.3f}, margins {np.round(margins, 2)}")
    np.savez_compressed(TINY_GOLDENS, **arrays)
    print(f"{TINY_GOLDENS}: {TINY_GOLDENS.stat().st_size} bytes")


def make_gguf_tokenizer(reader: gguf.GGUFReader) -> Any:  # Any: tokenizers has no type for a built tokenizer here
    """Return a byte-level BPE tokenizer of the file's vocabulary, good enough to make prompts."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    control = int(gguf.TokenType.CONTROL)
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True) for t, k in zip(tokens, types, strict=True) if k == control]
    )
    return tokenizer


def read_llama_config(reader: gguf.GGUFReader) -> LlamaConfig:
    """Return the transformers configuration a llama GGUF file without RoPE scaling describes."""

    def value(key: str) -> Any:  # Any: GGUF metadata
        return reader.fields[f"llama.{key}"].contents()

    if "llama.rope.scaling.type" in reader.fields:
        raise RuntimeError("files with RoPE scaling are not handled here")
    return LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=not any(t.name == "output.weight" for t in reader.tensors),
        attn_implementation="eager",
    )


def make_smollm2_goldens(path: Path) -> None:
    """Write smollm2.json from the GGUF file at `path`."""
    reader = gguf.GGUFReader(path)
    tensors = {}
    for t in reader.tensors:
        shape = tuple(int(n) for n in reversed(t.shape))
        tensors[t.name] = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
    model = build_transformers_model(read_llama_config(reader), tensors)
    tokenizer = make_gguf_tokenizer(reader)
    prompts = {}
    for name, text in SMOLLM2_PROMPTS.items():
        token_ids = tokenizer.encode(text).ids
        logits = compute_logits(model, token_ids).astype(np.float64)
        logprobs = (
            logits
            - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
            - logits.max(-1, keepdims=True)
        )
        greedy_ids, margins = continue_greedily(model, token_ids, NUM_SMOLLM2_GREEDY)
        top = np.argsort(-logits[-1], kind="stable")[:NUM_TOP_LOGITS]
        prompts[name] = {
            "text": text,
            "token_ids": token_ids,
            "prompt_logprobs": [round(float(logprobs[i - 1, t]), 5) for i, t in enumerate(token_ids) if i],
            "top_logits": [[int(t), round(float(logits[-1, t]), 5)] for t in top],
            "top_logprobs": [[int(t), round(float(logprobs[-1, t]), 5)] for t in top],
            "greedy_ids": greedy_ids,
            "greedy_margins": [round(m, 4) for m in margins],
        }
        print(f"{name}: {len(token_ids)} tokens -> {tokenizer.decode(greedy_ids, skip_special_tokens=False)!r}")
        perplexity = math.exp(-float(np.mean(prompts[name]["prompt_logprobs"])))
        print(f"   margins below 0.2: {sum(m < 0.2 for m in margins)}, perplexity {perplexity:.3f}")
    golden = {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, float32, CPU",
        "model": reader.fields["general.name"].contents(),
        "file_bytes": path.stat().st_size,
        "prompts": prompts,
    }
    SMOLLM2_GOLDENS.write_text(json.dumps(golden, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{SMOLLM2_GOLDENS}: {SMOLLM2_GOLDENS.stat().st_size} bytes")


def main() -> None:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tiny")
    commands.add_parser("smollm2").add_argument("gguf", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.command == "tiny":
        make_tiny_goldens()
    else:
        make_smollm2_goldens(arguments.gguf)


if __name__ == "__main__":
    main()
