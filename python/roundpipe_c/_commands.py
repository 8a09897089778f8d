"""Commands that answer at once."""
import contextlib
import json
import os
import tempfile
from typing import Any, Dict, Iterable, List, Optional, Union

from ._program import ask, run
from ._schedule import Schedule, given

Answer = Dict[str, Any]


def plan(model: Optional[str] = None, **keys: Any) -> Answer:
    """Whether @model fits, at how many tokens/s, in how many bytes.

    @model: a name of the catalogue, or a directory; None with `profile=`. Keys are options of `roundpipe plan`, as
    gpu="rtx4090", gpus=4, host_memory=256 (GiB), lora_rank=32. A plan that does not fit is an answer, too: it has
    `remedies`. Raises UsageError, RoundPipeError.
    """
    return ask("plan", [model] if model is not None else [], keys)


def simulate(profile: str, schedule: Schedule = "roundpipe", **keys: Any) -> Answer:
    """One schedule in virtual time: bubble_ratio and its parts (shares of 1), makespan_ms, tokens_per_s.

    @profile: a timing file, or the name of a published one. @schedule: a name of `roundpipe simulate --help`, or a
    function of (gpus, micro_batches) that yields each GPU's F and B (write_schedule()). `picture="timeline.png"` draws
    it. Raises UsageError, RoundPipeError: with the deadlock or the rule that a schedule of one's own breaks.
    """
    with given(schedule, keys) as options:
        return ask("simulate", [profile], options)


def verify(profile: str, schedule: Schedule, **keys: Any) -> Answer:
    """Proves that the schedule is correct. Raises RoundPipeError that names the rule which it breaks."""
    with given(schedule, keys) as options:
        return ask("verify", [profile], options)


def compare(*profiles: str, **keys: Any) -> Answer:
    """Several schedules (schedules="1f1b,zb-h1,roundpipe") with each of @profiles, in one table: `rows`."""
    return ask("compare", list(profiles), keys)


def sweep(*models: str, **keys: Any) -> "Any":
    """All combinations of options, as a pandas frame: gpus="2..8", schedule="1f1b,roundpipe"."""
    import pandas

    with tempfile.TemporaryDirectory(prefix="roundpipe-") as folder:
        path = os.path.join(folder, "sweep.csv")
        ask("sweep", list(models), {**keys, "output": path})
        return pandas.read_csv(path)


def profile(model: str, output: str, **keys: Any) -> Answer:
    """Measures the layers of @model on this machine (devices="cuda"), and writes the timing file @output."""
    return ask("profile", [model], {**keys, "output": output})


def init(config: Union[str, Dict[str, Any]], output: str, **keys: Any) -> Answer:
    """Makes a model with random weights in the directory @output, of a config.json or its contents."""
    with tempfile.TemporaryDirectory(prefix="roundpipe-") as folder:
        path = os.path.join(folder, "config.json")
        if isinstance(config, dict):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(config, file)
        return ask("init", [path if isinstance(config, dict) else config], {**keys, "output": output})


def merge(base: str, adapter: str, output: str, **keys: Any) -> Answer:
    """Makes one model of a base and the adapters that were trained on it."""
    return ask("merge", [base, adapter], {**keys, "output": output})


def evaluate(model: str, data: str, **keys: Any) -> Answer:
    """Loss (nats a token) and perplexity of @model on a file of samples."""
    return ask("evaluate", [model], {**keys, "data": data})


def generate(model: str, prompt: Union[str, Iterable[Dict[str, Any]]], **keys: Any) -> Union[str, List[Answer]]:
    """Continues a text: chat=True takes it as a user's message; temperature, top_p, max_new_tokens, devices="cuda".

    @model: a directory, a run's output, or a name of the hub. @prompt: a text; or records as training data has them,
    for a list of answers: each `prompt`, `answer` and, where it is known, `expected`, token ids all.
    """
    if isinstance(prompt, str):
        return run("generate", [model, prompt], keys)[:-1]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="roundpipe-"))
        path = os.path.join(folder, "prompts.jsonl")
        write_records(prompt, path)
        lines = run("generate", [model], {**keys, "prompts": path, "output": "-"})
        return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]


def write_records(records: Iterable[Dict[str, Any]], path: str) -> None:
    """Writes records, or a `datasets` object of them, as JSON lines."""
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
