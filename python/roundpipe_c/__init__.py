"""RoundPipe, as pip installs it: the program and the library lie in this package."""
import os
import sys
from importlib import metadata
from pathlib import Path

__version__ = metadata.version("roundpipe-c")


def program() -> Path:
    """Returns the path of the program `roundpipe`; it finds modules and profiles from its own place."""
    return Path(__file__).parent / "bin" / "roundpipe"


def environment() -> dict:
    """Returns the environment for program(): the wheel's GLib must not load modules of the system's GLib."""
    return {**os.environ, "GIO_MODULE_DIR": str(Path(__file__).parent / "bin")}


def main() -> None:
    """Becomes the program, with the arguments of this process; signals and the exit code are the program's."""
    os.execve(program(), ["roundpipe", *sys.argv[1:]], environment())
