"""The version that pip has installed; of a source tree, that of the program."""
import re
import subprocess
from importlib import metadata

from ._program import environment, program


def _find() -> str:
    try:
        return metadata.version("roundpipe-c")
    except metadata.PackageNotFoundError:
        said = subprocess.run([program(), "--version"], capture_output=True, text=True, env=environment(), check=True)
        return re.search(r"roundpipe (\S+)", said.stdout).group(1)


__version__ = _find()
