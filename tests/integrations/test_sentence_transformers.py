"""ElmoModule in a SentenceTransformer: the same vectors, files, and training."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from facts import mentions
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from sentence_transformers.sentence_transformer.modules import Pooling, WeightedLayerPooling

from torchelmo import SentenceEncoder
from torchelmo.errors import ConfigError, InputError, MissingFileError
from torchelmo.integrations.sentence_transformers import ElmoModule

TEXTS = ["The archer bent her bow.", "I took a bow. Then I left.", "Rain", ""]


def transformer(bilm_folder, *more, **settings):
    elmo = ElmoModule(bilm_folder, **settings)
    return SentenceTransformer(modules=[elmo, *more, Pooling(elmo.get_embedding_dimension(), "mean")], device="cpu")


def test_vectors_are_those_of_the_sentence_encoder(bilm_folder):
    expected = SentenceEncoder(bilm_folder).encode(TEXTS)
    found = transformer(bilm_folder).encode(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not found[3].any()


def test_training_and_inference_give_the_same_vectors(bilm_folder):
    model = transformer(bilm_folder)
    features = model.preprocess(TEXTS)
    with torch.enable_grad():
        found = model(features)["sentence_embedding"]
    np.testing.assert_allclose(found.detach().numpy(), model.encode(TEXTS), atol=1e-5)


def test_all_layers_are_given_to_the_next_module(bilm_folder):
    weights = torch.tensor([0.0, 0.0, 1.0])
    model = transformer(bilm_folder, WeightedLayerPooling(16, 2, layer_start=0, layer_weights=weights))
    expected = SentenceEncoder(bilm_folder, layers="top").encode(TEXTS)
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)


def test_a_prompt_is_put_before_each_text(bilm_folder):
    model = transformer(bilm_folder)
    np.testing.assert_allclose(model.encode(["a bow"], prompt="I took "), model.encode(["I took a bow"]), atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("freeze", [False, True])
def test_training_lowers_the_loss_and_survives_save_and_load(bilm_folder, tmp_path, freeze):
    model = transformer(bilm_folder, freeze=freeze)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pairs = [("It rained.", "Rain fell.", 1.0), ("It rained.", "Fry two eggs.", 0.0), ("Boil eggs.", "Fry eggs.", 1.0)]
    data = Dataset.from_dict(dict(zip(("sentence1", "sentence2", "score"), map(list, zip(*pairs)))))
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=8,
        per_device_train_batch_size=3,
        learning_rate=0.02,
        warmup_steps=0,
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=CosineSimilarityLoss(model))
    trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    assert losses[-1] < losses[0]
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert any("mixes" in name for name in changed)
    assert any("lstm" in name for name in changed) is not freeze
    model.save(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), model.encode(TEXTS), atol=1e-6)
    assert loaded[0].elmo.freeze is freeze


def test_save_and_load_of_the_module(bilm_folder, tmp_path):
    module = ElmoModule(bilm_folder, lang="de", freeze=True)
    torch.nn.init.normal_(module.elmo.mixes[0].scalars)
    module.save(str(tmp_path / "m"))
    module.save(str(tmp_path / "m"))  # as a checkpoint that is written again
    loaded = ElmoModule.load(str(tmp_path / "m"))
    assert (loaded.lang, loaded.elmo.freeze) == ("de", True)
    torch.testing.assert_close(loaded.elmo.mixes[0].weights, module.elmo.mixes[0].weights)
    path = tmp_path / "m" / "elmo_module.json"
    path.write_text(json.dumps({"format": 2}))
    with pytest.raises(ConfigError, match=mentions(path, "format 1", 2)):
        ElmoModule.load(str(tmp_path / "m"))
    path.unlink()
    with pytest.raises(MissingFileError, match=mentions(path)):
        ElmoModule.load(str(tmp_path / "m"))


def test_inputs_are_texts(bilm_folder):
    with pytest.raises(InputError, match=mentions("ElmoModule", 5)):
        ElmoModule(bilm_folder).preprocess([5])
