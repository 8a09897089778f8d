#!/usr/bin/env python3
"""Whether transformers and peft of this environment load what `roundpipe train` saves, and the other way round.

    VENV/bin/python tests/elsewhere/loads.py ROUNDPIPE

Tiny models are made, trained for three steps in fp32 and saved: whole, and as adapters (dense, and of experts). Here they
are loaded from the files alone. A line for each tells how far apart the two are:

  loss      of the same sequences, relative; of the merged model where peft has no modules for the adapters
  gradient  the worst tensor, of its norm (not of adapters of experts: their shapes differ)
  merged    logits of base and adapters, beside those of what `roundpipe merge` made of them
  back      loss of what save_pretrained() writes of it, read by roundpipe, relative

The exit status is 1 if one is above 1e-5, or if something does not load.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import peft
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

LIMIT = 1e-5
MAJOR = int(transformers.__version__.split(".")[0])
SEQUENCES, TOKENS, VOCABULARY = 4, 24, 67
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 40, "vocab_size": VOCABULARY, "torch_dtype": "float32",
         "max_position_embeddings": 64}
EXPERTS = {"num_experts_per_tok": 2, "head_dim": 8}
MODELS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 7},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 8},
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "pad_token_id": 0},
    "qwen3-moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 5,
                  "moe_intermediate_size": 20, "norm_topk_prob": True, **EXPERTS},
    "gpt-oss": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 5,
                "sliding_window": 7, "attention_bias": True, "swiglu_limit": 7.0,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                 "original_max_position_embeddings": 16, "truncate": False}, **EXPERTS},
}
DELTA = {"head_dim": 16, "full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
         "linear_key_head_dim": 8, "linear_value_head_dim": 8, "rms_norm_eps": 1e-2}
# queries are scaled from position 8 on; windows shorter than the sequences, each kind of block with its rope
NEW_MODELS = {
    "ministral3": {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "head_dim": 8,
                   "pad_token_id": 0, "rope_parameters": {
                       "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                       "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0,
                       "llama_4_scaling_beta": 0.3}},
    "mellum": {"architectures": ["MellumForCausalLM"], "model_type": "mellum", "num_local_experts": 5,
               "moe_intermediate_size": 20, "sliding_window": 7,
               "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
                   "full_attention": {"rope_type": "default", "rope_theta": 5e5},
                   "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}, **EXPERTS},
    "qwen3-5": {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", **DELTA},
    "qwen3-5-moe": {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "num_experts": 5,
                    "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24, **EXPERTS, **DELTA},
}
MODELS |= {name: config for name, config in NEW_MODELS.items() if hasattr(transformers, config["architectures"][0])}
APART = ("Qwen3MoeForCausalLM", "MellumForCausalLM", "Qwen3_5MoeForCausalLM")  # experts are tensors of their own in files
ATTENTION = "q_proj,k_proj,v_proj,o_proj"
# targets of adapters
RUNS = {
    "whole": None,
    "adapters": "all-linear",
    "attention": ATTENTION,
    "experts": ATTENTION + ",experts.gate_up_proj,experts.down_proj",
}
MIXTURES = ("qwen3-moe", "gpt-oss", "mellum")


def runs_of(name):
    if name not in MIXTURES:
        return ("whole", "adapters")
    return ("whole", "attention", "experts") + (("adapters",) if name != "gpt-oss" else ())


def has_no_stacks(name, run):
    """Experts of Qwen3-MoE are linear layers of their own before transformers 5: no adapters of stacks fit."""
    return name == "qwen3-moe" and run in ("experts", "adapters") and MAJOR < 5


def roundpipe(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"roundpipe {words[0]}: {done.stderr.strip()}")
    return done.stdout


def train(program, place, model, *settings, save=None):
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--save-gradients", save] if save else []
    return roundpipe(program, "train", place / "run.yaml", "--json", "--set", f"model={model}", *words)


def look(program, place, model, *settings):
    """Loss and gradients of the first step."""
    file, output = place / "gradients.safetensors", place / "looked"
    train(program, place, model, *settings, save=file)
    shutil.rmtree(output, ignore_errors=True)
    told = train(program, place, model, *settings, f"output={output}", "steps=1", "optimizer.learning_rate=0")
    return json.loads(told)["loss"], load_file(file)


def load(directory):
    eager = {"attn_implementation": "eager"}
    if MAJOR >= 5:
        eager["experts_implementation"] = "eager"
    return transformers.AutoModelForCausalLM.from_pretrained(directory, torch_dtype=torch.float32, **eager)


def logits_of(model, ids):
    return model(input_ids=ids, use_cache=False).logits


def file_gradients(model):
    """By the names of files."""
    for name, value in model.named_parameters():
        name = name.replace(".default", "")
        if value.grad is None or ".experts.lora_" in name or ".experts.base_layer" in name:
            continue
        stem, _, kind = name.rpartition(".")
        if type(model).__name__ in APART and ".experts." in name and value.grad.dim() == 3:
            parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[kind]
            for expert, matrix in enumerate(value.grad):
                for part, piece in zip(parts, matrix.chunk(len(parts))):
                    yield f"{stem}.{expert}.{part}.weight", piece
        else:
            yield name, value.grad


def worst_gradient(model, saved):
    worst = 0.0
    for name, gradient in file_gradients(model):
        norm = max(gradient.norm().item(), 1e-6)
        worst = max(worst, (gradient - saved[name].reshape(gradient.shape)).norm().item() / norm)
    return worst


def check(program, place, name, run, ids):
    """(loss, gradient, merged, back); None: not looked at"""
    targets = RUNS[run]
    base, output, back = place / name, place / f"{name}-{run}", place / f"{name}-{run}-back"
    joined = place / f"{name}-{run}-merged"
    settings = [] if targets is None else ["lora.rank=3", "lora.alpha=5", f"lora.targets={targets}"]
    train(program, place, base, f"output={output}", *settings)
    saved = output / "checkpoint-3"
    here = (saved,) if targets is None else (base, f"lora.start={saved}")
    told, gradients = look(program, place, *here)
    card = ModelCard.load(saved / "README.md").data
    if card.library_name != ("transformers" if targets is None else "peft") or card.pipeline_tag != "text-generation":
        sys.exit(f"{saved}: the model card says {card}")
    if targets is not None:
        roundpipe(program, "merge", base, saved, "-o", joined)
    if targets is None:
        model = load(saved)
    elif has_no_stacks(name, run):
        model = load(joined)
    else:
        model = peft.PeftModel.from_pretrained(load(base), saved, is_trainable=True)
    model.eval()
    logits = logits_of(model, ids)
    loss = cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY).float(), ids[:, 1:].reshape(-1))
    apart = abs(told - loss.item()) / loss.item()
    if has_no_stacks(name, run):
        return (apart, None, None, None)
    loss.backward()
    gradient, merged = worst_gradient(model, gradients), None
    model.save_pretrained(back)
    again, _ = look(program, place, *((back,) if targets is None else (base, f"lora.start={back}")))
    if targets is not None:
        with torch.no_grad():
            other = logits_of(load(joined), ids)
        merged = ((other - logits).abs().max() / logits.abs().max()).item()
    return (apart, gradient, merged, abs(again - told) / told)


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    ids = torch.randint(1, VOCABULARY, (SEQUENCES, TOKENS))
    bad = 0
    print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    print(f"{'':24}{'loss':>10}{'gradient':>10}{'merged':>10}{'back':>10}")
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        (place / "data.jsonl").write_text(
            "".join(json.dumps({"input_ids": row}) + "\n" for row in ids.tolist()))
        (place / "run.yaml").write_text(
            f"model: none\ndata: {place}/data.jsonl\noutput: {place}/out\nsequence_length: {TOKENS}\n"
            f"micro_batches: {SEQUENCES}\nsteps: 3\ndtype: fp32\nshuffle: false\n"
            "optimizer:\n  learning_rate: 0.01\n")
        for name, config in MODELS.items():
            (place / f"{name}.json").write_text(json.dumps(SIZES | config))
            roundpipe(program, "init", place / f"{name}.json", "-o", place / name, "--seed", 1)
            for run in runs_of(name):
                try:
                    figures = check(program, place, name, run, ids)
                except Exception as problem:  # a line each, whatever it is
                    print(f"{name:12}{run:12}  {type(problem).__name__}: {str(problem)[:600]}")
                    bad += 1
                    continue
                cells = "".join(f"{'-' if f is None else f'{f:.1e}':>10}" for f in figures)
                above = any(f is not None and not f <= LIMIT for f in figures)
                print(f"{name:12}{run:12}{cells}{'  above 1e-5' if above else ''}", flush=True)
                bad += above
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
