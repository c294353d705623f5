"""The peers' own virtual environments, made once under .bench/ with this environment's torch."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).parent.parent / ".bench"
LOGS = FOLDER / "logs"  # what the contenders said, the latest run of each
PEERS = {
    "flower": "flwr[simulation]==1.41.0",
    "pfl": "pfl[pytorch]==0.6.0",
    "fedjax": "fedjax==0.0.17 jax==0.10.2 jaxlib==0.10.2 dm-haiku==0.0.17",
}


class PeerUnavailable(RuntimeError):
    """A peer that cannot be installed here."""


def python_of(peer: str) -> Path:
    """The interpreter of the peer's environment, which is made if it is not there."""
    folder = FOLDER / peer
    python, marker = folder / "bin" / "python", folder / "installed"
    torch = f"torch=={metadata.version('torch')}"
    wanted = f"{PEERS[peer]}\n{torch}\n{sys.version.split()[0]}\n"
    if marker.is_file() and marker.read_text("utf-8") == wanted:
        return python
    print(f"installing {PEERS[peer]} into {folder}", file=sys.stderr)
    FOLDER.mkdir(exist_ok=True)
    constraints = FOLDER / f"{peer}-constraints.txt"
    constraints.write_text(torch + "\n", encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    # torch comes first and pinned, so that no other package pulls another build of it.
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [*pip, torch],
        [*pip, *PEERS[peer].split()],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines()
            raise PeerUnavailable(
                f"{PEERS[peer]} cannot be installed: {words[-1] if words else 'no reason given'}"
            )
    marker.write_text(wanted, encoding="utf-8")
    return python
