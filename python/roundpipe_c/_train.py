"""Training, with a call for each step."""
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

from ._commands import write_records
from ._program import RoundPipeError, environment, error_of, program

POLL_SECONDS = 0.1

#: A line of metrics.jsonl: step, loss, learning_rate, grad_norm, tokens, step_ms; of an evaluation step and eval_loss
OnStep = Callable[[Dict[str, Any]], None]


def _settings(keys: Dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in keys.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"--set={prefix}{key}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, (list, tuple)) else str(value)


def _run_file(keys: Dict[str, Any]) -> str:
    """Returns a run file with @keys; a value of JSON is one of YAML."""
    return "".join(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}\n"
                   for key, value in keys.items() if value is not None)


class _Lines:
    """The lines that a growing file gains."""

    def __init__(self, path: Path):
        self.path, self.at, self.rest = path, path.stat().st_size if path.exists() else 0, b""

    def new(self) -> List[bytes]:
        if not self.path.exists():
            return []
        size = self.path.stat().st_size
        if size < self.at:  # begun anew, or cut where the run goes on
            self.at, self.rest = 0, b""
        with open(self.path, "rb") as file:
            file.seek(self.at)
            text = self.rest + file.read()
            self.at = file.tell()
        *lines, self.rest = text.split(b"\n")
        return lines


def _tell(lines: _Lines, seen: int, on_step: Optional[OnStep]) -> int:
    for line in lines.new():
        if on_step is None or not line:
            continue
        values = json.loads(line)
        if values["step"] >= seen:
            seen = values["step"]
            on_step(values)
    return seen


def _output(spec: Optional[str], settings: Dict[str, Any]) -> Path:
    if settings.get("output"):
        return Path(settings["output"])
    for line in open(spec, encoding="utf-8") if spec else []:
        found = re.match(r"output:\s*(\"?)(.+?)\1\s*(#.*)?$", line)
        if found:
            return Path(found.group(2))
    raise ValueError("expected output=, the directory of the results")


def train(spec: Union[None, str, Dict[str, Any]] = None, on_step: Optional[OnStep] = None, *,
          resume: Union[bool, str] = False, data: Any = None, **settings: Any) -> Dict[str, Any]:
    """Trains as a run file says, and returns what `roundpipe train --json` prints: predicted and measured.

    @spec: a run file's path, or its keys as a dictionary: {"model": …, "data": …, "output": …, "lora": {"rank": 16}};
    @settings are keys, too, and go before those of the file. @data: what the file may say, or records (an iterable of
    dictionaries, a `datasets` object), which go to OUTPUT.data.jsonl, for a run that is resumed reads them again.
    @on_step is called with each line of metrics.jsonl, soon after it is written.

    Ctrl-C ends the run behind the step under way and a checkpoint; KeyboardInterrupt follows. `resume=True` goes on
    from there. Raises UsageError, RoundPipeError.
    """
    path = spec if isinstance(spec, (str, os.PathLike)) else None
    settings = {**(spec if isinstance(spec, dict) else {}), **settings}
    output = _output(path, settings)
    if data is not None and not isinstance(data, (str, list)) or data and isinstance(data, list) and \
            isinstance(data[0], dict):
        written = Path(f"{output}.data.jsonl")
        written.parent.mkdir(parents=True, exist_ok=True)
        write_records(data, str(written))
        data = str(written)
    if data is not None:
        settings["data"] = data
    words = [str(program()), "train", "--json"]
    if path is not None:
        words += _settings(settings)
    if resume:
        words.append("--resume" if resume is True else f"--resume={resume}")
    with tempfile.TemporaryDirectory(prefix="roundpipe-") as folder:
        if path is None:
            path = os.path.join(folder, "run.yaml")
            Path(path).write_text(_run_file(settings), encoding="utf-8")
        return _follow([*words, "--", str(path)], output, on_step)


def _follow(words: List[str], output: Path, on_step: Optional[OnStep]) -> Dict[str, Any]:
    lines = _Lines(output / "metrics.jsonl")
    seen, interrupted, problem = 0, False, None
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as told:
        # in a group of its own: Ctrl-C of a terminal comes here first, and not twice
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=printed, stderr=told, env=environment(),
                                   start_new_session=True)
        while True:
            try:
                over = process.poll() is not None
                if problem is None:
                    seen = _tell(lines, seen, on_step)
                if over:
                    break
                time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                interrupted = True
                process.send_signal(signal.SIGINT)
            except BaseException as caught:  # of on_step: the run ends as by Ctrl-C, with a checkpoint
                problem = caught
                process.send_signal(signal.SIGINT)
        printed.seek(0)
        told.seek(0)
        text, errors = printed.read(), told.read()
    if problem is not None:
        raise problem
    if interrupted:
        raise KeyboardInterrupt(errors.strip().splitlines()[-1] if errors.strip() else "")
    if process.returncode != 0:
        raise error_of(errors, process.returncode if process.returncode > 0 else 128 - process.returncode)
    try:
        return json.loads(text)
    except ValueError:
        raise RoundPipeError(f"expected JSON of roundpipe train, found {text[:200]!r}", 0) from None
