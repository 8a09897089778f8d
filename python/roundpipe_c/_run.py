"""A run's output directory, as tables."""
import json
from pathlib import Path
from typing import Any, Iterator, List, Union


class Run:
    """The output directory of `train`.

    metrics, evaluations: pandas frames, a row a step. checkpoints: their directories, oldest first.
    """

    def __init__(self, path: Union[str, Path]):
        self.path = Path(path).absolute()
        if not (self.path / "metrics.jsonl").is_file():
            raise FileNotFoundError(f"{self.path}: no output directory of a run: it has no metrics.jsonl")

    def _lines(self) -> Iterator[dict]:
        with open(self.path / "metrics.jsonl", encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):  # the last one may be written just now
                    yield json.loads(line)

    @staticmethod
    def _frame(rows: List[dict]) -> Any:
        import pandas

        frame = pandas.DataFrame(rows)
        return frame.set_index("step") if "step" in frame else frame

    @property
    def metrics(self) -> Any:
        """Steps: loss (nats a token), learning_rate, grad_norm, tokens, step_ms, bubble_ratio (a share of 1)."""
        return self._frame([line for line in self._lines() if "eval_loss" not in line])

    @property
    def evaluations(self) -> Any:
        """Evaluations: eval_loss (nats a token) and eval_runtime (s), by the step after which they were made."""
        return self._frame([line for line in self._lines() if "eval_loss" in line])

    @property
    def checkpoints(self) -> List[Path]:
        """Directories of the checkpoints, oldest first."""
        found = [path for path in self.path.glob("checkpoint-*") if path.name[11:].isdigit()]
        return sorted(found, key=lambda path: int(path.name[11:]))

    @property
    def best(self) -> Path:
        """The checkpoint of the lowest validation loss, else the last."""
        best = self.path / "best"
        return best.resolve() if best.is_dir() else self.checkpoints[-1]

    @staticmethod
    def trace(path: Union[str, Path]) -> Any:
        """The tasks of a trace (`--trace FILE.json`), predicted or measured, as a frame: name, device and lane, begin
        and duration in µs, and the task's own values."""
        events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
        names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events
                 if e.get("ph") == "M" and e["name"] == "thread_name"}
        devices = {e["pid"]: e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "process_name"}
        import pandas

        return pandas.DataFrame([{"name": e["name"], "device": devices.get(e["pid"]),
                                  "lane": names.get((e["pid"], e["tid"])), "ts": e["ts"], "dur": e["dur"],
                                  **e.get("args", {})} for e in events if e.get("ph") == "X"])
