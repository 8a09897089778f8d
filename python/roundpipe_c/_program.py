"""The program, and what it says."""
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional


class RoundPipeError(RuntimeError):
    """The program ended with an error; str() is its message, which names the file, the place and the remedy."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code  #: exit code: 1 failed, 2 wrong usage, 128 + N ended by signal N


class UsageError(RoundPipeError, ValueError):
    """An option or a value that the program does not take (exit code 2)."""


def program() -> Path:
    """Returns the path of the program: ROUNDPIPE of the environment, or the one that pip has installed."""
    given = os.environ.get("ROUNDPIPE")
    return Path(given) if given else Path(__file__).parent / "bin" / "roundpipe"


def environment() -> Dict[str, str]:
    """Returns the environment for program(): the wheel's GLib must not load modules of the system's GLib."""
    if os.environ.get("ROUNDPIPE"):
        return dict(os.environ)
    return {**os.environ, "GIO_MODULE_DIR": str(Path(__file__).parent / "bin")}


def main() -> None:
    """Becomes the program, with the arguments of this process; signals and the exit code are the program's."""
    os.execve(program(), ["roundpipe", *sys.argv[1:]], environment())


def options(keys: Dict[str, Any]) -> List[str]:
    """Returns @keys as options: `host_memory=256` is --host-memory=256, True a flag; None and False are left out."""
    words = []
    for key, value in keys.items():
        name = "--" + key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            words.append(f"{name}={text}")
    return words


def error_of(stderr: str, code: int) -> RoundPipeError:
    """Returns the exception for an exit with @code and these lines."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    told = [line for line in lines if ": note: " not in line and ": warning: " not in line]
    message = "\n".join(told or lines) or f"roundpipe ended with exit code {code}"
    return (UsageError if code == 2 else RoundPipeError)(message, code)


def run(command: str, words: List[str], keys: Dict[str, Any], text: Optional[str] = None) -> str:
    """Returns what @command prints. Raises RoundPipeError if it ends with an error and prints nothing: a plan that
    does not fit is an answer."""
    done = subprocess.run([program(), command, *options(keys), "--", *words], input=text, text=True, env=environment(),
                          stdin=subprocess.DEVNULL if text is None else None, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False)
    if done.returncode != 0 and (done.returncode != 1 or not done.stdout.startswith("{")):
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        raise error_of(done.stderr, code)
    return done.stdout


def ask(command: str, words: List[str], keys: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the JSON that @command prints."""
    return json.loads(run(command, words, {**keys, "json": True}))
