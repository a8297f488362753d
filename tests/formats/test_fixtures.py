"""Every model that another program wrote gives the same vectors by all paths, and after a conversion."""

from pathlib import Path

import numpy as np
import pytest
from tiny_tasks import pos_config, tagged, write_pos

import torchelmo
from torchelmo import Elmo
from torchelmo.formats.convert import convert
from torchelmo.tasks import load as load_task
from torchelmo.tasks import train as train_task

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODELS = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
SENTENCES = [["the", "bow", "潮水"], ["a"], "I took a bow and an unbelievablylongwordthatiscut .".split()]


def all_layers(bilm: torchelmo.BiLM) -> dict[str, np.ndarray]:
    ids = Elmo(bilm).encode(SENTENCES)
    return {path: bilm(ids, path=path).layers.detach().numpy() for path in ("reference", "fast")}


@pytest.mark.parametrize("name", MODELS)
def test_paths_and_conversions_agree(name, tmp_path):
    bilm = torchelmo.load(FIXTURES / name)
    expected = all_layers(bilm)
    np.testing.assert_allclose(expected["fast"], expected["reference"], atol=1e-5)
    forms = ["folder"] if bilm.config.input == "characters+words" else ["folder", "official"]
    for form in forms:
        convert(FIXTURES / name, tmp_path / form, to=form)
        for path, layers in all_layers(torchelmo.load(tmp_path / form)).items():
            np.testing.assert_allclose(layers, expected[path], atol=1e-5)


def test_a_task_with_a_converted_model(tmp_path):
    """A model of ELMoForManyLangs, as a model folder, is trained with a task, saved, and used."""
    convert(FIXTURES / "efml_tiny.model", tmp_path / "converted")
    write_pos(tmp_path)
    elmo = {"place": "input", "model": str(tmp_path / "converted")}
    train_task(pos_config(tmp_path, tmp_path / "out", epochs=1, elmo=elmo))
    trained = load_task(tmp_path / "out")
    assert len(trained.predict_examples(tagged(3))) == 3
