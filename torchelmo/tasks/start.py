"""From a configuration to a model that can be trained: data read, words counted, the biLM run over all sentences."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from torchelmo.bilm.weights import load as load_bilm
from torchelmo.config import build_config
from torchelmo.errors import ConfigError
from torchelmo.tasks.config import TaskConfig, WordsConfig
from torchelmo.tasks.elmo_layers import ElmoLayers
from torchelmo.tasks.folder import build_characters
from torchelmo.tasks.inputs import TokenInput
from torchelmo.tasks.layers.word_vectors import VectorFile, WordEmbedding, read_vectors
from torchelmo.tasks.registry import find_task
from torchelmo.tasks.trained import TrainedTask, all_sentences, require_examples
from torchelmo.train.distributed import choose_device
from torchelmo.train.signals import Stop

log = logging.getLogger(__name__)


class Start(NamedTuple):
    trained: TrainedTask  # with random weights yet
    examples: list[Any]  # to train on
    dev: list[Any]
    bilm_seconds: float


def start(config: TaskConfig, stop: Stop) -> Start | None:
    """None if it was asked to stop meanwhile: the biLM's run over all sentences can be long."""
    task = find_task(config.task)
    options = build_config(task.data_config, config.data, where="data")
    model_options = build_config(task.model_config, config.model, where="model")  # wrong keys are errors at once
    device = choose_device(config.device)
    labelled, dev = task.read(config.train, options), task.read(config.dev, options)
    examples = task.training(labelled, options)
    for path, part in ((config.train, examples), (config.dev, dev)):
        require_examples(part, path, task)
    log.info("%s: %s examples to train on, %s to score", task.name, f"{len(examples):,}", f"{len(dev):,}")
    torch.manual_seed(config.seed)  # before anything random is built
    elmo = None
    if config.elmo.place != "none":
        elmo = ElmoLayers(load_bilm(config.elmo.model or None), config.elmo, folder=config.out)
    words = build_words(config.words, all_sentences(task, examples))
    inputs = TokenInput(words, build_characters(config), elmo)
    vocabularies = task.vocabularies(labelled, options)
    model = task.build(model_options, inputs, vocabularies).to(device)
    before = time.perf_counter()
    if elmo is not None:
        elmo.fill(all_sentences(task, [*examples, *dev]), stop)
    if stop.asked:
        return None
    return Start(TrainedTask(task, config, model, vocabularies), examples, dev, time.perf_counter() - before)


def build_words(config: WordsConfig, sentences: Iterable[Sequence[str]]) -> WordEmbedding | None:
    """Vectors from a file (and, where they are trained, for frequent words outside it), learned ones, or none."""
    if config.vectors is None:
        if not config.dim:
            return None
        frequent = _frequent(_count(sentences), config.min_count)
        if not frequent:
            raise ConfigError(
                f"words.min_count: expected some words that come {config.min_count} times in the training data, found "
                "none. Set a smaller number, or words.dim = 0 for no word vectors."
            )
        return WordEmbedding(frequent, dim=config.dim)
    file = read_vectors(config.vectors, config.limit)
    if config.dim not in (0, file.vectors.shape[1]):
        raise ConfigError(
            f"words.dim: expected {file.vectors.shape[1]}, the width of the vectors in {config.vectors}, or nothing; "
            f"got {config.dim}."
        )
    if not config.trainable:
        return WordEmbedding(file.words, file.vectors, n_fixed=len(file.words))
    return _trainable_words(file, _count(sentences), config.min_count)


def _trainable_words(file: VectorFile, counts: Counter[str], min_count: int) -> WordEmbedding:
    """Words that the training data lacks would get no gradient: they are fixed, and no checkpoint holds them."""
    known = set(file.words)
    seen = {word if word in known else word.lower() for word in counts}
    more = [word for word in _frequent(counts, min_count) if word not in known and word.lower() not in known]
    extra = torch.randn(len(more), file.vectors.shape[1]) * file.vectors.std()
    learned = [row for row, word in enumerate(file.words) if word in seen]
    fixed = [row for row, word in enumerate(file.words) if word not in seen]
    words = [*(file.words[row] for row in learned), *more, *(file.words[row] for row in fixed)]
    vectors = torch.cat([file.vectors[learned], extra, file.vectors[fixed]])
    return WordEmbedding(words, vectors, n_fixed=len(fixed))


def _count(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    return Counter(word for sentence in sentences for word in sentence)


def _frequent(counts: Counter[str], min_count: int) -> list[str]:
    return sorted(word for word, count in counts.items() if count >= min_count)
