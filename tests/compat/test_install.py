"""Programs that import AllenNLP's ELMo run unchanged, without AllenNLP."""

import importlib
import importlib.util
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from facts import mentions

from torchelmo.compat import allennlp as compat
from torchelmo.compat.allennlp.__main__ import main
from torchelmo.errors import MissingFileError

SCRIPT = """\
import sys

import numpy as np
from allennlp.commands.elmo import DEFAULT_BATCH_SIZE, ElmoEmbedder
from allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper
from allennlp.modules.elmo import Elmo, _ElmoBiLm, batch_to_ids
from allennlp.modules.scalar_mix import ScalarMix
from allennlp.modules.token_embedders import ElmoTokenEmbedder
import beside

if __name__ == "__main__":
    options, weights, out = sys.argv[1:]
    assert batch_to_ids([["a"]])[0, 0].tolist() == ELMoCharacterMapper().convert_word_to_char_ids("a")
    np.save(out, ElmoEmbedder(options, weights).embed_sentence(["a", "bow"]))
"""


@pytest.fixture
def _names_removed():
    """Start without AllenNLP's names, and remove those that a test puts into sys.modules."""
    for name in _names():  # a page of the documentation installs them, too
        del sys.modules[name]
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in _names():
        del sys.modules[name]


def _names():
    return [name for name in sys.modules if name.split(".")[0] == "allennlp"]


@pytest.mark.usefixtures("_names_removed")
def test_the_names_are_torchelmos():
    assert compat.install()
    assert compat.install()  # a second call changes nothing
    module = importlib.import_module("allennlp.modules.elmo")
    assert module.Elmo is compat.Elmo
    assert module._ElmoBiLm is compat.ElmoBiLm
    embedder = importlib.import_module("allennlp.commands.elmo")
    assert embedder.ElmoEmbedder is compat.ElmoEmbedder
    assert embedder.DEFAULT_OPTIONS_FILE.endswith("2xhighway_options.json")
    import allennlp.modules.token_embedders.elmo_token_embedder as named  # type: ignore[import-not-found]

    assert named.ElmoTokenEmbedder is compat.ElmoTokenEmbedder
    assert importlib.util.find_spec("allennlp") is not None
    with pytest.raises(ModuleNotFoundError, match=mentions("allennlp.nn", "torchelmo", "allennlp.modules.elmo")):
        importlib.import_module("allennlp.nn.util")
    with pytest.raises(ImportError, match="Vocabulary"):
        from allennlp.data import Vocabulary  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.usefixtures("_names_removed")
def test_an_installed_allennlp_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "allennlp").mkdir()
    (tmp_path / "allennlp" / "__init__.py").write_text("mine = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not compat.install()
    assert importlib.import_module("allennlp").mine
    assert not compat.install()


@pytest.mark.usefixtures("_names_removed")
def test_a_program_that_was_imported_first_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "allennlp", ModuleType("allennlp"))
    assert not compat.install()


def test_a_script_runs_as_it_is(files, tmp_path):
    script, out = tmp_path / "old.py", tmp_path / "out.npy"
    script.write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("")  # a script finds the modules beside it
    command = [sys.executable, "-m", "torchelmo.compat.allennlp", script, *files, out]
    subprocess.run(list(map(str, command)), check=True)
    expected = compat.ElmoEmbedder(*files).embed_sentence(["a", "bow"])
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_names_removed")
def test_a_module_runs_as_it_is(tmp_path, monkeypatch, capsys):
    (tmp_path / "old_module.py").write_text(
        "import sys, allennlp.commands.elmo\nprint(__name__, sys.argv[1:], allennlp.commands.elmo.DEFAULT_BATCH_SIZE)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["before"])
    monkeypatch.setattr("sys.path", list(sys.path))
    assert main(["-m", "old_module", "--flag"]) == 0
    assert capsys.readouterr().out == "__main__ ['--flag'] 64\n"


@pytest.mark.parametrize(
    ("arguments", "code", "fact"),
    [([], 2, "SCRIPT.py"), (["-m"], 2, "SCRIPT.py"), (["--help"], 0, "SCRIPT.py"), (["none.py"], 2, "none.py")],
)
def test_wrong_calls_are_explained(arguments, code, fact, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert fact in captured.out + captured.err


@pytest.mark.parametrize("folder", [".", "original"])
def test_published_addresses_are_found_in_the_home_of_models(files, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELMO_HOME", str(tmp_path))
    addresses = compat.DEFAULT_OPTIONS_FILE, compat.DEFAULT_WEIGHT_FILE
    with pytest.raises(MissingFileError, match=mentions(*addresses, tmp_path, "TORCHELMO_HOME")):
        compat.ElmoEmbedder(*addresses)
    (tmp_path / folder).mkdir(exist_ok=True)
    for file, address in zip(files, addresses):
        (tmp_path / folder / address.rsplit("/", 1)[-1]).write_bytes(file.read_bytes())
    vectors = compat.ElmoEmbedder(*addresses).embed_sentence(["bow"])
    np.testing.assert_array_equal(vectors, compat.ElmoEmbedder(*files).embed_sentence(["bow"]))
