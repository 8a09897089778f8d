"""Real vocabularies through `roundpipe export --gguf`: gguf_vocabularies.py ROUNDPIPE MODELS.

MODELS is the folder of that name in llama.cpp's source, which llama-cpp-python's source package has: vocabularies as
GGUF, texts and the ids that llama.cpp's own tests expect. Each vocabulary becomes a tokenizer.json beside a tiny model;
the exported file must have the same tokens, types and merges, and llama.cpp the same ids. Scores of SentencePiece's
tokens, which a tokenizer.json does not have, need only give the same ids.
"""
import json
import os
import subprocess
import sys
import tempfile

import gguf
import llama_cpp

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
PATTERNS = {"qwen2": QWEN, "llama-bpe": QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|"), "gpt-2": None, "llama-spm": None}
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32,
          "tie_word_embeddings": True, "max_position_embeddings": 256}


def values(path):
    """The values of a file."""
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


def sentencepiece(tokens, types, scores):
    """Model and normalizer, with merges in the order of the scores of their tokens."""
    ids = {token: i for i, token in enumerate(tokens)}
    merges = sorted((-scores[i], i, ids[token[:cut]], token[:cut], token[cut:]) for token, i in ids.items()
                    if types[i] == 1 for cut in range(1, len(token)) if token[:cut] in ids and token[cut:] in ids)
    return {"normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": ids,
                      "merges": [merge[3:] for merge in merges]}}


def byte_level(name, tokens, types, merges):
    """Model and pre_tokenizer."""
    steps = [{"type": "Split", "pattern": {"Regex": PATTERNS[name]}, "behavior": "Isolated"}] if PATTERNS[name] else []
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "use_regex": not steps})
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "model": {"type": "BPE", "ignore_merges": name == "llama-bpe", "merges": merges,
                      "vocab": {token: i for i, token in enumerate(tokens) if types[i] == 1}}}


def check(folder, name):
    """Returns: whether all is the same."""
    source = os.path.join(sys.argv[2], f"ggml-vocab-{name}.gguf")
    wanted = {key.removeprefix("tokenizer.ggml."): value for key, value in values(source).items()}
    tokens, types = wanted["tokens"], wanted["token_type"]
    path = os.path.join(folder, name)
    with open(path + ".json", "w") as file:
        json.dump({**CONFIG, "vocab_size": len(tokens)}, file)
    subprocess.run([sys.argv[1], "init", path + ".json", "-o", path], check=True, capture_output=True)
    parts = (sentencepiece(tokens, types, wanted["scores"]) if wanted["model"] == "llama"
             else byte_level(name, tokens, types, wanted["merges"]))
    added = [{"id": i, "content": token, "special": types[i] != 4, "normalized": False}
             for i, token in enumerate(tokens) if types[i] in (2, 3, 4)]
    with open(os.path.join(path, "tokenizer.json"), "w") as file:
        json.dump({"version": "1.0", "added_tokens": added, **parts}, file)
    subprocess.run([sys.argv[1], "export", path, "--gguf", path + ".gguf"], check=True, capture_output=True)
    found = values(path + ".gguf")
    differ = [key for key in ("model", "pre", "tokens", "token_type", "merges")
              if found.get("tokenizer.ggml." + key) != wanted.get(key)]
    llm = llama_cpp.Llama(path + ".gguf", vocab_only=True, verbose=False)
    with open(source + ".inp") as texts, open(source + ".out") as ids:
        pairs = list(zip(texts.read().split("\n__ggml_vocab_test__\n"), ids.read().split("\n")))
    same = sum(llm.tokenize(text.encode(), add_bos=False, special=False) == [int(id) for id in line.split()]
               for text, line in pairs)
    print(f"{name}: {len(tokens)} tokens, other values: {differ or 'none'}, {same} of {len(pairs)} texts have the same ids")
    return not differ and same == len(pairs)


with tempfile.TemporaryDirectory() as temporary:
    sys.exit(0 if all([check(temporary, name) for name in PATTERNS]) else 1)
