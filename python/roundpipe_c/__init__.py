"""RoundPipe from Python: the program `roundpipe`, its answers as dictionaries and its runs as tables.

Nothing is computed here. Each function runs one command with `--json`; its keyword arguments are the command's options
(`host_memory=256` is `--host-memory=256`, `sync=True` is `--sync`), which `roundpipe COMMAND --help` tells.

    import roundpipe_c as rp
    rp.plan("qwen3-8b", gpu="rtx4090", gpus=4, host_memory=256)["recommendation"]
    rp.simulate("qwen3-1.7b", schedule="1f1b", gpus=8, micro_batches=16)["bubble_ratio"]
    rp.train("run.yaml", on_step=print)
"""
from ._program import RoundPipeError, UsageError, environment, main, program
from ._commands import compare, evaluate, generate, init, merge, plan, profile, simulate, sweep, verify
from ._run import Run
from ._schedule import B, F, write_schedule
from ._train import train
from ._version import __version__

__all__ = ["B", "F", "RoundPipeError", "Run", "UsageError", "__version__", "compare", "environment", "evaluate",
           "generate", "init", "main", "merge", "plan", "profile", "program", "simulate", "sweep", "train", "verify", "write_schedule"]
