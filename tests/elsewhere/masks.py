#!/usr/bin/env python3
"""Whether what is learned of chats is what TRL's assistant_only_loss learns of them, with templates that mark turns.

    VENV/bin/python tests/elsewhere/masks.py ROUNDPIPE TOKENIZER.json

The templates are those that TRL ships for training: published ones of Qwen, Llama, GPT-OSS, DeepSeek, Gemma, GLM, Phi
and others with {% generation %} around what assistants say. An SFTTrainer makes labels of each chat; `roundpipe inspect`
tells which tokens are learned. A line for each template: chats compared, chats that one or both refuse, and differences.
The exit status is 1 if there is one, or if fewer than half of the templates take a chat.

Every turn here ends with a character that is one token: transformers learns only the first token of another if it is the
last that a template marks; all of its bytes are learned here.
"""
import json
import logging
import pathlib
import subprocess
import sys
import tempfile
import warnings

import datasets
import torch
import transformers
import trl
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEMPLATES = pathlib.Path(trl.__file__).parent / "chat_templates"
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a"]}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "call12345", "type": "function",
                                                            "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]}
RESULT = {"role": "tool", "name": "add", "tool_call_id": "call12345", "content": "3"}


def says(*texts):
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]


CHATS = [
    {"messages": says("Hello?", "Yes.")},
    {"messages": says("One", "Eins", "Two", "Zwei", "Three", "Drei 🎉 é")},
    {"messages": [{"role": "system", "content": "Be brief."}] + says("Hi", " spaces \n", "again", "assistant\nuser")},
    {"messages": says("x", "<b>bold</b>", "y", "\nlines\n\nof text\n")},
    {"messages": says("same", "same", "same", "same")},
    {"messages": says("q", "<think>\nwhy\n</think>\n\nbecause", "q2", "<think>\nhm\n</think>\n\nno")},
    {"messages": says("1+2?") + [CALL, RESULT] + [{"role": "assistant", "content": "3."}], "tools": TOOLS},
    {"messages": says("empty answer", "", "again", "日本.")},
]
# templates of models that also see: contents are lists of parts
OF_PARTS = ("idefics3", "llava_next", "smolvlm")


def in_parts(chat):
    messages = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat["messages"]]
    return {**chat, "messages": messages}


def trl_labels(model, tokenizer, chat, place):
    """ids and labels of one chat, by the code that trains."""
    config = trl.SFTConfig(output_dir=str(place / "trl"), assistant_only_loss=True, max_length=None, report_to=[],
                           use_cpu=True, bf16=False, disable_tqdm=True)
    trainer = trl.SFTTrainer(model=model, args=config, train_dataset=datasets.Dataset.from_list([chat]),
                             processing_class=tokenizer)
    batch = trainer.data_collator([trainer.train_dataset[0]])
    return batch["input_ids"][0].tolist(), batch["labels"][0].tolist()


def our_labels(program, place, chat):
    """(number of tokens, whether each is learned)"""
    (place / "chat.jsonl").write_text(json.dumps(chat, ensure_ascii=False) + "\n", encoding="utf-8")
    done = subprocess.run([program, "inspect", str(place / "chat.jsonl"), "--model", str(place), "--samples", "1", "--json"],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    parts = json.loads(done.stdout)["examples"][0]["parts"]
    return [part["learned"] for part in parts for _ in range(part["tokens"])]


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=256000, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                         num_attention_heads=1, num_key_value_heads=1, head_dim=8))
    bad = taking = total = 0
    paths = sorted(TEMPLATES.glob("*_training.jinja"))
    print(f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}")
    for path in paths:
        compared = refused = alone = different = 0
        with tempfile.TemporaryDirectory() as directory:
            place = pathlib.Path(directory)
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=sys.argv[2], bos_token="<|begin|>", eos_token="<|end|>",
                                                pad_token="<|end|>", chat_template=path.read_text(encoding="utf-8"))
            tokenizer.save_pretrained(place)
            (place / "config.json").write_text(json.dumps(model.config.to_dict()))
            for number, chat in enumerate(CHATS, 1):
                if path.name.startswith(OF_PARTS):
                    chat = in_parts(chat)
                try:
                    ids, labels = trl_labels(model, tokenizer, chat, place)
                except Exception as problem:
                    theirs = problem
                else:
                    theirs = None
                try:
                    learned = our_labels(program, place, chat)
                except RuntimeError as problem:
                    if theirs is None:
                        print(f"  {path.name}: chat {number}: only we refuse: {problem}")
                        different += 1
                    refused += theirs is not None
                    continue
                if theirs is not None:
                    alone += 1
                    print(f"  {path.name}: chat {number}: only TRL refuses: {str(theirs)[:200]}")
                    continue
                compared += 1
                if learned != [label != -100 for label in labels]:
                    print(f"  {path.name}: chat {number}: {len(ids)} tokens, {len(learned)} here; learned "
                          f"{sum(label != -100 for label in labels)}, {sum(learned)} here")
                    different += 1
        print(f"{path.name:44}{compared:3} compared, {refused} refused by both, {alone} by TRL alone, {different} differ", flush=True)
        bad += different
        taking += compared > 0
        total += compared
    print(f"{taking} of {len(paths)} templates take chats; {total} chats compared, {bad} differ")
    return bad > 0 or taking * 2 < len(paths)


if __name__ == "__main__":
    sys.exit(main())
