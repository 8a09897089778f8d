"""Schedules as Python functions."""
import contextlib
import os
import tempfile
from typing import Any, Callable, Dict, Iterable, Iterator, NamedTuple, Union


class F(NamedTuple):
    """The forward of a stage for a micro-batch; both count from 0."""
    stage: int
    micro_batch: int


class B(NamedTuple):
    """The backward of a stage for a micro-batch; both count from 0."""
    stage: int
    micro_batch: int


#: (gpus, micro_batches) -> for each GPU its actions, in order
ScheduleFunction = Callable[[int, int], Iterable[Iterable[Union[F, B]]]]
Schedule = Union[str, ScheduleFunction]


def write_schedule(schedule: ScheduleFunction, gpus: int, micro_batches: int, path: str) -> None:
    """Writes @schedule for `gpus` GPUs as a file for `--schedule-file` and a run file's `schedule_file`.

    Example, GPipe:

        def gpipe(gpus, micro_batches):
            for g in range(gpus):
                yield [F(g, m) for m in range(micro_batches)] + [B(g, m) for m in range(micro_batches)]
    """
    lines = [f"# {getattr(schedule, '__name__', 'schedule')}: N = {gpus}, M = {micro_batches}"]
    for actions in schedule(gpus, micro_batches):
        lines.append(" ".join(f"{type(a).__name__}{a.stage}.{a.micro_batch}" for a in actions))
    if len(lines) != gpus + 1:
        raise ValueError(f"expected actions of {gpus} GPUs from the schedule, found {len(lines) - 1}")
    with open(path, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


@contextlib.contextmanager
def given(schedule: Schedule, keys: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yields @keys with the schedule: by its name, or as a file that a function was written to."""
    if isinstance(schedule, str):
        yield {**keys, "schedule": schedule}
        return
    rest = {key: value for key, value in keys.items() if key not in ("gpus", "micro_batches")}
    if "gpus" not in keys or "micro_batches" not in keys:
        raise ValueError("a schedule that is a function needs gpus= and micro_batches=")
    with tempfile.TemporaryDirectory(prefix="roundpipe-") as folder:
        name = getattr(schedule, "__name__", "schedule").strip("<>")
        path = os.path.join(folder, name + ".txt")
        write_schedule(schedule, keys["gpus"], keys["micro_batches"], path)
        yield {**rest, "schedule_file": path}
