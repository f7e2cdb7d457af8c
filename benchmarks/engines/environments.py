"""An environment for each engine, made once from the versions pinned in environments.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PINNED = Path(__file__).with_name("environments.json")


def pins() -> dict[str, Any]:
    """What each environment consists of."""
    return dict(json.loads(PINNED.read_text(encoding="utf-8")))


def made(name: str | None, home: Path) -> Path:
    """The folder of an environment, made on first use and again when its pins change; None is this environment."""
    if name is None:
        return Path(sys.prefix)
    pin, folder = pins()[name], home / "environments" / name
    record = folder.with_suffix(".json")  # beside it: written when the environment is whole
    if not record.exists() or json.loads(record.read_text()) != pin:
        folder.mkdir(parents=True, exist_ok=True)
        pinned = built_with(pin, folder.with_suffix(".txt"))
        for command in commands(pin, folder):
            print(" ".join(command), flush=True)
            subprocess.run(command, check=True, cwd=folder, env={**os.environ, **pinned})
        record.write_text(json.dumps(pin))
    return folder


def commands(pin: dict[str, Any], folder: Path) -> list[list[str]]:
    """The commands that make an environment."""
    if pin["tool"] == "npm":
        return [["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *pin["packages"]]]
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [[sys.executable, "-m", "venv", str(folder)], [*install, *pin["packages"]]]
    if pin.get("bare"):  # of which only the files are needed
        wanted.append([*install, "--no-deps", *pin["bare"]])
    if pin["without"]:  # packages that others pull in and that do not fit
        wanted.append([python, "-m", "pip", "uninstall", "--quiet", "--yes", *pin["without"]])
    return wanted


def built_with(pin: dict[str, Any], constraints: Path) -> dict[str, str]:
    """Variables that have pip build source packages with the pinned versions too, instead of the newest ones."""
    if pin["tool"] != "pip":
        return {}
    constraints.write_text("".join(f"{package}\n" for package in pin["packages"]))
    return dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(constraints.resolve()))


def interpreter(name: str | None, home: Path) -> list[str]:
    """The command that runs a collector of this environment."""
    if name is None:
        return [sys.executable]
    folder = made(name, home)
    return ["node"] if pins()[name]["tool"] == "npm" else [str(folder / "bin" / "python")]
