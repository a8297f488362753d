"""The wheel holds all that is needed: it runs in an environment of its own, far from the source tree."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]

# No network: an attempt to reach one ends the program.
OFFLINE = """
import sys

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise SystemExit(f"tried to reach the network: {event} {arguments}")

sys.addaudithook(watch)
"""

EMBED = """
import torchelmo
from torchelmo import Elmo

vectors, of_text = Elmo(torchelmo.load()).embed([["I", "took", "a", "bow"], "He took a bow."], layers="all")
print(torchelmo.__file__)
print(torchelmo.__version__)
print(vectors.shape, of_text.shape)
"""

COMMAND = """
from torchelmo.cli import main

sys.argv = ["torchelmo", "embed", "text.txt", "--out", "vectors.npz", "--pool", "mean"]
main()
"""


class Installed(NamedTuple):
    wheel: Path
    environment: Path
    elsewhere: Path  # a directory that has nothing to do with the source tree

    def run(self, program: str, *arguments: str) -> str:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV_"))}
        result = subprocess.run(
            [self.environment / "bin" / program, *arguments],
            cwd=self.elsewhere,
            env=clean | {"COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    environment, elsewhere = folder / "environment", folder / "elsewhere"
    elsewhere.mkdir()

    def python(*arguments: object) -> None:
        command = [sys.executable, *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

    python("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    python("-m", "venv", "--without-pip", environment)
    new = environment / "bin" / "python"
    python("-m", "pip", "--python", new, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # The dependencies are those of the running environment. A path in a .pth file brings its packages, but
    # does not run its .pth files, so the source tree of an editable install stays out of sight.
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Installed(wheel, environment, elsewhere)


def test_the_wheel_embeds_a_sentence(installed):
    file, version, shape = installed.run("python", "-c", OFFLINE + EMBED).splitlines()
    assert Path(file).is_relative_to(installed.environment)
    assert version == "0.1.0"
    assert shape == "(3, 4, 384) (3, 5, 384)"


def test_the_command_embeds_a_text_without_a_network(installed):
    (installed.elsewhere / "text.txt").write_text("I took a bow .\nShe bent her bow .\n", encoding="utf-8")
    installed.run("python", "-c", OFFLINE + COMMAND)
    with np.load(installed.elsewhere / "vectors.npz") as vectors:
        assert {name: vectors[name].shape for name in vectors.files if name.isdecimal()} == {
            "0": (3, 384),
            "1": (3, 384),
        }


def test_the_command_is_installed(installed):
    assert "embed" in installed.run("torchelmo", "--help")
    assert "embed" in installed.run("python", "-m", "torchelmo", "--help")


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(installed):
    with zipfile.ZipFile(installed.wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "torchelmo"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    recipes = {path for path in (ROOT / "experiments").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert inside == {path.relative_to(ROOT).as_posix() for path in files} | {
        f"torchelmo/{path.relative_to(ROOT).as_posix()}" for path in recipes
    }
    assert {"torchelmo/py.typed", "torchelmo/pretrained/english-small/model.safetensors"} <= inside


def test_recipes_are_found_by_name(installed):
    program = "from torchelmo.config import find_recipe; print(find_recipe('pretrain', 'laptop'))"
    path = Path(installed.run("python", "-c", program).strip())
    assert path.is_relative_to(installed.environment)
    assert path.read_text(encoding="utf-8") == (ROOT / "experiments/pretrain/laptop.toml").read_text(encoding="utf-8")
