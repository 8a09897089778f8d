"""What tests/elsewhere/check-gguf compares: gguf_files.py ROUNDPIPE [--write].

Tiny models of every family that is written, whose values are numbers of a generator that tests/exec-model/test-gguf.c has as well, are
exported in every type. gguf's reader must find the tensors that its own name map and quantizations make of them, bit for
bit. llama.cpp must open them, make the same tokens of texts, have the same loss on a text as `evaluate`, and give the same
greedy answers as `generate`; so must adapters that `train` made.
"""
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZERS = os.path.join(HERE, "..", "text", "fixtures")
FIXTURES = os.path.join(HERE, "..", "exec-model", "fixtures", "gguf")
TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
         "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0,
         "q4_0": gguf.GGMLQuantizationType.Q4_0, "mxfp4": gguf.GGMLQuantizationType.MXFP4}
ARCH = {"llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2,
        "qwen3": gguf.MODEL_ARCH.QWEN3, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "smollm3": gguf.MODEL_ARCH.SMOLLM3,
        "gpt_oss": gguf.MODEL_ARCH.GPT_OSS}
TEXT = "The quick brown fox jumps over the lazy dog; it's 1,234.5 metres, they'll say, and we've heard. hello world"

wrong = 0


def check(good, what):
    """Counts what is wrong."""
    global wrong
    if not good:
        wrong += 1
        print("WRONG: " + what)


# ---- models ----

def numbers(name, n):
    """@n numbers from -1 to 1 that follow from @name: splitmix64 of FNV-1a."""
    seed = 0xcbf29ce484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001b3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)


def fill(path):
    """Replaces a model's values. Returns: name -> values as fp32"""
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        tensors = {}
        for name, row in header.items():
            if name == "__metadata__":
                continue
            u = numbers(name, math.prod(row["shape"]))
            if name.endswith(("norm.weight", "layernorm.weight")):
                values = np.float32(1) + np.float32(0.25) * u
            else:
                values = np.float32(0.25) * u
            file.seek(8 + length + row["data_offsets"][0])
            file.write(values.tobytes())
            tensors[name] = values.reshape(row["shape"])
    return tensors


def run(*words):
    """The output of a command."""
    done = subprocess.run([sys.argv[1], *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{words}: {done.stderr}")
    return done.stdout


def make(folder, name, row):
    """A model with tokenizer and chat template in @folder. Returns: name -> values"""
    path = os.path.join(folder, name)
    config = os.path.join(FIXTURES, name + ".json")
    run("init", config, "-o", path, "--seed", "1")
    shutil.copy(os.path.join(TOKENIZERS, row["tokenizer"] + ".json"), os.path.join(path, "tokenizer.json"))
    shutil.copy(config, os.path.join(path, "tokenizer_config.json"))
    return fill(os.path.join(path, "model.safetensors"))


# ---- what gguf's reader must find ----

def permuted(values, heads):
    """Rows of a head as pairs, as llama.cpp's rope of neighbours takes them."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def expected(row, tensors):
    """Names and values of the file, by gguf's map of names."""
    config, kind = row, row["model_type"]
    names = gguf.get_tensor_name_map(ARCH[kind], config["num_hidden_layers"])
    found = {}
    for layer in range(config["num_hidden_layers"]):
        for part in ("gate", "up", "down"):
            prefix = f"model.layers.{layer}.mlp.experts."
            stack = [tensors.pop(f"{prefix}{e}.{part}_proj.weight") for e in range(config.get("num_experts", 0))]
            if stack:
                tensors[f"{prefix}{part}_proj.weight"] = np.stack(stack)
    for name, values in tensors.items():
        if name.endswith("sinks"):
            name += ".weight"
        parts = {name: values}
        if name.endswith("gate_up_proj"):
            t = values.swapaxes(1, 2)
            parts = {name.replace("gate_up", "gate") + ".weight": t[:, 0::2], name.replace("gate_up", "up") + ".weight": t[:, 1::2]}
        elif name.endswith("gate_up_proj_bias"):
            parts = {name.replace("gate_up_proj_bias", "gate_proj.bias"): values[:, 0::2],
                     name.replace("gate_up_proj_bias", "up_proj.bias"): values[:, 1::2]}
        elif name.endswith("experts.down_proj"):
            parts = {name + ".weight": values.swapaxes(1, 2)}
        elif name.endswith("down_proj_bias"):
            parts = {name.replace("_bias", ".bias"): values}
        elif kind in ("llama", "mistral", "smollm3") and ".q_proj." in name:
            parts = {name: permuted(values, config["num_attention_heads"])}
        elif kind in ("llama", "mistral", "smollm3") and ".k_proj." in name:
            parts = {name: permuted(values, config["num_key_value_heads"])}
        for part, v in parts.items():
            found[names.get_name(part, try_suffixes=(".weight", ".bias"))] = np.ascontiguousarray(v)
    return found


def type_of(name, values, kind, tied):
    """The type of a tensor in a file of @kind."""
    if values.ndim < 2 or name.endswith(".bias") or "ffn_gate_inp" in name:
        return gguf.GGMLQuantizationType.F32
    if kind == "mxfp4" and values.ndim < 3:
        return gguf.GGMLQuantizationType.F32  # the models' own
    if kind in ("q8_0", "q4_0", "mxfp4") and values.shape[-1] % 32 != 0:
        return gguf.GGMLQuantizationType.F16
    if kind == "q4_0" and (name == "output.weight" or name == "token_embd.weight" and tied):
        return gguf.GGMLQuantizationType.Q8_0
    return TYPES[kind]


def compare_tensors(what, path, row, tensors, kind):
    """Every tensor of a file, bit for bit."""
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    wanted = expected(row, dict(tensors))
    extra = set(found) - set(wanted) - {"rope_freqs.weight"}
    check(not extra and not set(wanted) - set(found), f"{what}: tensors {sorted(set(found) ^ set(wanted))}")
    for name, values in wanted.items():
        tensor, wanted_type = found[name], type_of(name, values, kind, row.get("tie_word_embeddings"))
        bits = gguf.quants.quantize(values, wanted_type)
        check(tensor.tensor_type == wanted_type, f"{what}: {name} is {tensor.tensor_type.name}")
        check(list(tensor.shape) == list(reversed(values.shape)), f"{what}: {name} has shape {list(tensor.shape)}")
        check(tensor.data.tobytes() == bits.tobytes(), f"{what}: {name} differs")


def compare_packed(folder):
    """A GPT-OSS as it is published: experts in MXFP4, whose values must stay the same. Returns: the file"""
    path = os.path.join(folder, "packed")
    run("init", os.path.join(FIXTURES, "gpt-oss.json"), "-o", path, "--seed", "1", "--base", "mxfp4")
    shutil.copy(os.path.join(TOKENIZERS, "gpt-oss.json"), os.path.join(path, "tokenizer.json"))
    run("export", path, "--gguf", path + ".gguf")
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path + ".gguf").tensors}
    table = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
    with open(os.path.join(path, "model.safetensors"), "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header, data = json.loads(file.read(length)), file.read()

    def bytes_of(name):
        first, end = header[name]["data_offsets"]
        return np.frombuffer(data[first:end], dtype=np.uint8).reshape(header[name]["shape"])

    for name in [name[:-len("_blocks")] for name in header if name.endswith("_blocks")]:
        blocks, scales = bytes_of(name + "_blocks"), bytes_of(name + "_scales")
        values = np.stack([table[blocks & 15], table[blocks >> 4]], axis=-1).reshape(*scales.shape, 32)
        values = np.ldexp(values, scales[..., None].astype(int) - 127).reshape(*scales.shape[:2], -1)
        layer = "blk." + name.split(".")[2]
        parts = {"ffn_gate_exps": values[:, 0::2], "ffn_up_exps": values[:, 1::2]}
        for part, wanted in parts.items() if "gate_up" in name else [("ffn_down_exps", values)]:
            tensor = found[f"{layer}.{part}.weight"]
            check(tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4, f"packed: {tensor.name} is another type")
            check(np.array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type), wanted),
                  f"packed: {tensor.name} has other values")
    return path + ".gguf"


# ---- what llama.cpp must say ----

def losses(llm, ids):
    """The mean loss of a text's tokens but the first."""
    llm.reset()
    llm.eval(ids)
    logits = np.array(llm.scores[:len(ids) - 1], dtype=np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(ids) - 1), ids[1:]]))


def answer(llm, ids, n):
    """The likeliest tokens behind @ids, up to one that ends answers."""
    import llama_cpp
    vocab = llama_cpp.llama_model_get_vocab(llm.model)
    llm.reset()
    llm.eval(ids)
    said = []
    while len(said) < n:
        said.append(int(np.argmax(llm.scores[llm.n_tokens - 1])))
        if llama_cpp.llama_vocab_is_eog(vocab, said[-1]):
            break
        llm.eval([said[-1]])
    return said


def open_llama(path, **keys):
    """A model in llama.cpp, which keeps its keys and values in fp32, too."""
    import llama_cpp
    return llama_cpp.Llama(path, n_ctx=256, n_batch=256, logits_all=True, verbose=False, n_threads=1,
                           type_k=0, type_v=0, **keys)


def compare_answers(what, llm, path, folder, ids, tolerance, words=()):
    """Losses and greedy answers. @words: of the commands. Returns: the difference of losses"""
    text = os.path.join(folder, "text.jsonl")
    with open(text, "w") as file:
        json.dump({"input_ids": ids}, file)
    ours = json.loads(run("evaluate", path, *words, "--data", text, "--dtype", "fp32", "--sequence-length", "128",
                          "--json"))["loss"]
    theirs = losses(llm, ids)
    check(abs(ours - theirs) < tolerance, f"{what}: loss {theirs}, not {ours}")
    with open(text, "w") as file:
        for n in range(3, 3 + 8):
            json.dump({"input_ids": ids[:n * 2]}, file)
            file.write("\n")
    said = os.path.join(folder, "said.jsonl")
    run("generate", path, *words, "--prompts", text, "-o", said, "--max-new-tokens", "16", "--json")
    same = 0
    with open(said) as file:
        for line in file:
            row = json.loads(line)
            same += answer(llm, row["prompt"], 16) == row["answer"]
    check(same == 8 or tolerance > 1e-3 and same >= 6, f"{what}: {same} of 8 answers are the same")
    return abs(ours - theirs), same


def compare_tokens(what, llm, row):
    """Tokens of the fixtures' texts. Returns: how many texts differ, of how many"""
    with open(os.path.join(TOKENIZERS, "texts.jsonl")) as file:
        texts = [json.loads(line)["text"] for line in file]
    with open(os.path.join(TOKENIZERS, row["tokenizer"] + ".ids")) as file:
        ids = [json.loads(line)["ids"] for line in file]
    differ = [text for text, wanted in zip(texts, ids)
              if llm.tokenize(text.encode(), add_bos=False, special=True) != wanted]
    return differ, len(texts)


def main():
    """Compares all models; with --write, writes checksums."""
    sums = []
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(name[:-5] for name in os.listdir(FIXTURES) if name.endswith(".json")):
            with open(os.path.join(FIXTURES, name + ".json")) as file:
                row = json.load(file)
            tensors = make(folder, name, row)
            path = os.path.join(folder, name)
            for kind in (kind for kind in TYPES if kind != "mxfp4" or "moe" in name or "oss" in name):
                out = f"{path}-{kind}.gguf"
                run("export", path, "--gguf", out, "--quantize", kind)
                compare_tensors(f"{name} {kind}", out, row, tensors, kind)
                with open(out, "rb") as file:
                    sums.append(f"{hashlib.sha256(file.read()).hexdigest()}  {name}-{kind}.gguf\n")
            if "--no-llama" in sys.argv:
                continue
            report = []
            for kind, tolerance in (("f32", 2e-5), ("f16", 2e-2)):
                llm = open_llama(f"{path}-{kind}.gguf")
                ids = [int(id) for id in llm.tokenize(TEXT.encode(), add_bos=False)][:60]
                gap, same = compare_answers(f"{name} {kind}", llm, path, folder, ids, tolerance)
                report.append(f"{kind}: loss differs by {gap:.1e}, {same} of 8 answers are the same")
            differ, n = compare_tokens(name, llm, row)
            report.append(f"tokens of {n - len(differ)} of {n} texts are the same")
            print(f"{name}: " + "; ".join(report))
            if differ:
                print("    other tokens:", [text[:40] for text in differ])
            if llm.metadata.get("tokenizer.chat_template") != row.get("chat_template"):
                check(False, f"{name}: chat template")
            lora(folder, name, path, "all-linear")
            if name == "gpt-oss":
                lora(folder, name, path, "[q_proj, mlp.experts.gate_up_proj, mlp.experts.down_proj, mlp.router]")
        packed = compare_packed(folder)
        if "--no-llama" not in sys.argv:
            llm = open_llama(packed)
            ids = [int(id) for id in llm.tokenize(TEXT.encode(), add_bos=False)][:60]
            gap, same = compare_answers("packed", llm, packed[:-len(".gguf")], folder, ids, 2e-2)
            print(f"packed: loss differs by {gap:.1e}, {same} of 8 answers are the same")
    if "--write" in sys.argv and wrong == 0:
        with open(os.path.join(FIXTURES, "sha256"), "w") as file:
            file.writelines(sums)
    sys.exit(1 if wrong else 0)


def lora(folder, name, path, targets):
    """An adapter that a run made, beside the model."""
    data, output = os.path.join(folder, "data.jsonl"), tempfile.mkdtemp(dir=folder)
    with open(data, "w") as file:
        for i in range(16):
            json.dump({"input_ids": [(7 * i + 3 * k * k) % 400 + 10 for k in range(24)]}, file)
            file.write("\n")
    with open(output + ".yaml", "w") as file:
        file.write(f"model: {path}\ndata: {data}\noutput: {output}\ndevices: host:1\nsequence_length: 24\n"
                   f"micro_batches: 2\nsteps: 6\noptimizer: {{learning_rate: 0.05}}\nlora: {{rank: 4, alpha: 12, targets: {targets}}}\n")
    run("train", output + ".yaml")
    adapter = f"{path}-adapter.gguf"
    run("export", output, "--gguf", adapter, "--force")
    llm = open_llama(f"{path}-f32.gguf", lora_path=adapter)
    ids = [int(id) for id in llm.tokenize(TEXT.encode(), add_bos=False)][:60]
    plain = losses(open_llama(f"{path}-f32.gguf"), ids)
    gap, same = compare_answers(f"{name} with adapters", llm, output, folder, ids, 1e-4)
    print(f"    adapters: loss {losses(llm, ids):.3f} ({plain:.3f} without), differs by {gap:.1e}, {same} of 8 answers are "
          "the same")


main()
