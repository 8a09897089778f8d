#!/usr/bin/env python3
"""Makes fuzz/corpus/adapter: configs as peft writes them, each with its tensors for the tiny model of fuzz-adapter.c."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "adapter"
LAYER = "base_model.model.model.layers.0."
Q, V = LAYER + "self_attn.q_proj", LAYER + "self_attn.v_proj"
EXPERTS = LAYER + "mlp.experts"
RANK = 2
# in and out of each module
ATTENTION = {Q: (8, 8), V: (8, 4)}


def adapters(sizes, dtype, experts=1):
    shapes = {}
    for name, (inner, outer) in sizes.items():
        shapes[name + ".lora_A.weight"] = (dtype, [RANK * experts, inner])
        shapes[name + ".lora_B.weight"] = (dtype, [outer, RANK * experts])
    return shapes


def write(name, config, shapes):
    header, at = {}, 0
    for tensor, (dtype, shape) in shapes.items():
        end = at + (4 if dtype == "F32" else 2) * shape[0] * shape[1]
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4, **config}
    (HERE / name).write_bytes(json.dumps(config).encode() + b"\0" + struct.pack("<Q", len(text)) + text + bytes(at))


HERE.mkdir(exist_ok=True)
write("attention", {"target_modules": ["q_proj", "v_proj"], "bias": "none", "lora_dropout": 0.1}, adapters(ATTENTION, "F32"))
write("bf16", {"target_modules": "all-linear", "use_rslora": True, "layers_to_transform": None}, adapters(ATTENTION, "BF16"))
write("saved", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "rank_pattern": {}},
      {**adapters({Q: (8, 8)}, "F32"), "base_model.model.lm_head.weight": ("F32", [16, 8])})
write("experts", {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
      {**adapters({Q: (8, 8)}, "F32"), **adapters({EXPERTS + ".base_layer": (8, 8), EXPERTS: (4, 8)}, "F32", 2)})
