"""What a run starts from: weights, and the random numbers of each step."""

import hashlib
from dataclasses import replace

import torch

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.model import BiLM
from torchelmo.bilm.tensors import own_tensors
from torchelmo.bilm.weights import load
from torchelmo.errors import ConfigError
from torchelmo.text.vocabulary import Vocabulary
from torchelmo.train.config import PretrainConfig
from torchelmo.train.corpus import Corpus


def build_model(config: PretrainConfig, corpus: Corpus) -> BiLM:
    """[model] with random weights, or the model that `init` names; the softmax is over the data's words."""
    vocabulary = corpus.vocabulary
    torch.manual_seed(step_seed(config.seed, 0, 0, "weights"))
    if config.init is None:
        bilm, new_softmax = BiLM(config.model_config(len(vocabulary)), vocabulary), True
        bilm.origin = f"trained on {config.data.name}"
    else:
        given = load(config.init)
        bilm = with_softmax(given, vocabulary, where=str(config.init))
        new_softmax = bilm is not given
        for parameter in bilm.parameters():
            # A tensor of a mapped file may start anywhere, which is seen in the last digits of a product; its copy
            # stands where that of a resumed run will.
            parameter.data = parameter.data.clone()
    if config.unigram_bias and new_softmax and bilm.softmax is not None:
        bilm.softmax.start_from_counts(torch.from_numpy(corpus.target_counts))
    return bilm


def with_softmax(bilm: BiLM, vocabulary: Vocabulary, where: str = "model") -> BiLM:
    """`bilm` itself if its softmax is over these words; with a new softmax if it has none."""
    if bilm.config.softmax_words:
        if bilm.vocabulary != vocabulary:
            raise ConfigError(
                f"{where}: its softmax has {bilm.config.softmax_words} words of its own, and the data was "
                f"prepared with {len(vocabulary)} others. Prepare the text with the model's vocab.txt."
            )
        return bilm
    if bilm.config.input == "words" and bilm.vocabulary != vocabulary:
        raise ConfigError(
            f"{where}: reads {bilm.config.n_words} words of its own, and the data was prepared with others. "
            "Prepare the text with the model's vocab.txt."
        )
    config: BiLMConfig = replace(bilm.config, softmax_words=len(vocabulary))
    new = BiLM(config, vocabulary)
    with torch.no_grad():
        for name, tensor in own_tensors(bilm).items():
            new.get_parameter(name).copy_(tensor)
    new.origin, new.official_options = bilm.origin, bilm.official_options
    return new


def step_seed(*parts: object) -> int:
    """63 bits from the seed of the run, a step and a purpose: no state to save, the same after a resume."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
