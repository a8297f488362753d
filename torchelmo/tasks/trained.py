"""A trained task: score it, predict with it, save it and load it. The folder needs nothing outside itself.

task.json            the settings and vocabularies of the task
words.json           the words that have vectors
words.safetensors    the fixed word vectors, which belong to the last of these words
model.safetensors    the weights of the best epoch
bilm/                the biLM before the run, if ELMo is used
metrics.json         the scores on the dev data
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo import __version__
from torchelmo.config import Config, NonNegativeInt, Range, build_config, config_to_dict
from torchelmo.errors import ConfigError, InputError, MissingFileError, short_repr
from torchelmo.files import read_json, write_json
from torchelmo.formats.load import load_folder
from torchelmo.runtime import choose_device
from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.elmo import ElmoLayers
from torchelmo.tasks.inputs import TokenInput, build_characters
from torchelmo.tasks.task import Counts, Scores, Source, Task, TaskModel, Vocabularies, find_task
from torchelmo.tasks.words import WordEmbedding
from torchelmo.tensors import Shape, read_tensors, write_tensors
from torchelmo.text.batching import scoring_batches, windows

FORMAT = 2
_WINDOW = 256  # unlabeled examples that are sorted by length together
_BILM, _FIXED_WORDS = "inputs.elmo.elmo.bilm.", "inputs.words.fixed"


class Evaluation(NamedTuple):
    """The scores of a trained task on a labeled file."""

    scores: Scores
    labels: dict[str, Counts]  # the items of every label; empty for a task without labels
    report: str  # a readable table with more detail, or empty
    n_examples: int


class TrainedTask:
    """A task model with everything that is needed to score it and to predict with it. See `load`."""

    def __init__(
        self, task: Task[Any, Any], config: TaskConfig, model: TaskModel[Any, Any], vocabularies: Vocabularies
    ) -> None:
        self.task, self.config, self.model, self.vocabularies = task, config, model, vocabularies
        self.data_options = build_config(task.data_config, config.data, where="data")

    def evaluate(self, path: str | Path) -> Evaluation:
        """Score the predictions for a labeled file, as the official script of the task does.

        Args:
            path: The file, in the format of the training data.

        Returns:
            The scores, a readable report and the number of examples.

        Raises:
            InputError: The file is malformed or has no examples.
        """
        examples = self.task.read(Path(path), self.data_options)
        require_examples(examples, path, self.task)
        predictions = self.predict_examples(examples)
        return Evaluation(
            self.task.score(examples, predictions),
            self.task.count_labels(examples, predictions),
            self.task.report(examples, predictions),
            len(examples),
        )

    def predict(
        self,
        texts: Iterable[Any],
        *,
        lang: str | None = "auto",
        questions: Sequence[str] = (),
        predicates: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """Predict for texts in memory.

        Args:
            texts: Strings or token lists. A string is split into sentences and tokens. For "nli", pairs of a premise
                and a hypothesis.
            lang: The language of the strings, a code that spaCy knows. None: their tokens are separated by spaces.
                "auto": as set in `[data]` of the trained task.
            questions: For "qa": the questions to ask about every text.
            predicates: For "srl": the words, in any case, whose arguments to label. Default: the words that usually
                were predicates in the training data.

        Returns:
            One record per example, in order, as plain data for JSON. A string of several sentences gives one record
            for each sentence, unless the task classifies whole texts or documents.

        Raises:
            InputError: A text has the wrong type, or `questions` or `predicates` do not fit the task.

        Example:
            >>> from torchelmo import tasks
            >>> tagger = tasks.load("runs/pos")  # doctest: +SKIP
            >>> tagger.predict(["The dog barked."])[0]["tags"]  # doctest: +SKIP
            ['DET', 'NOUN', 'VERB', 'PUNCT']
        """
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise InputError(f"predict: expected a list of texts, got {short_repr(texts)}. Pass [text] for one text.")
        source = Source(lang=lang, questions=questions, predicates=predicates, texts=list(texts))
        return [self.task.record(example, prediction) for example, prediction in self.predict_source(source)]

    def predict_source(self, source: Source | str | Path) -> Iterator[tuple[Any, Any]]:
        """Predict for an unlabeled input of any length, in bounded memory.

        Args:
            source: The input, or the path of a text file.

        Yields:
            Examples and their predictions, in order. `task.show` and `task.record` turn them into text and plain data.

        Raises:
            InputError: The input is malformed, or its questions or predicates do not fit the task.
        """
        if isinstance(source, (str, Path)):
            source = Source(str(source))
        if not isinstance(source, Source):
            raise InputError(f"predict_source: expected a Source or the path of a file, got {short_repr(source)}.")
        if source.questions and not self.task.answers_questions:
            raise InputError(f"questions: expected none, because {self.task.name} answers no questions.")
        if source.predicates and not self.task.labels_predicates:
            raise InputError(f"predicates: expected none, because {self.task.name} labels no predicates.")
        if source.texts is not None and self.task.answers_questions and not source.questions:
            raise InputError(f"questions: expected the questions that {self.task.name} answers about the texts.")
        for examples in windows(self.task.read_input(source, self.data_options, self.vocabularies), _WINDOW):
            yield from zip(examples, self.predict_examples(examples))

    def predict_examples(self, examples: Sequence[Any]) -> list[Any]:
        """Return one prediction per example of the task, in order."""
        lengths = [example_length(self.task, example) for example in examples]
        predictions: dict[int, Any] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            for batch in scoring_batches(lengths, self.config.batch_size):
                predictions.update(zip(batch, self.model.predict([examples[i] for i in batch]), strict=True))
        self.model.train(was_training)
        return [predictions[i] for i in range(len(examples))]


def load(folder: str | Path, *, device: str = "auto") -> TrainedTask:
    """Load a trained task from the folder that `train` or `torchelmo task train` wrote.

    All files are checked before the model is built: types, names, shapes, and that every number is finite.

    Args:
        folder: The folder of the run.
        device: "auto" for CUDA if available, else the CPU; or the name of a device.

    Returns:
        The task with the weights of its best epoch, in evaluation mode.

    Raises:
        MissingFileError: The folder or one of its files does not exist, or the run has no finished epoch yet.
        ConfigError: task.json or words.json is damaged, or has another format.
        WeightsError: The weights are damaged or do not fit the settings.

    Example:
        >>> from torchelmo import tasks
        >>> trained = tasks.load("runs/ner")  # doctest: +SKIP
        >>> trained.evaluate("test.conll").scores["f1"]  # doctest: +SKIP
        92.2
    """
    folder = Path(folder)
    card = _read_card(folder)
    config, task, where = card.config, find_task(card.config.task), str(folder / "task.json")
    options = build_config(task.model_config, config.model, where=f"{where}: model")
    words = _read_words(folder, card)
    elmo = None
    if config.elmo.place != "none":
        # Predictions need the layers of a sentence once, so that a cache would only cost memory.
        elmo = ElmoLayers(load_folder(folder / "bilm"), replace(config.elmo, memory_mb=0.0, disk_mb=0.0, cache=None))

    def build() -> TaskModel[Any, Any]:
        try:
            inputs = TokenInput(_build_words(words), build_characters(config.characters), elmo)
            return task.build(options, inputs, card.vocabularies)
        except (KeyError, IndexError, RuntimeError) as error:
            raise ConfigError(
                f"{where}: the settings and vocabularies do not make a model of {task.name} ({error}). Train it again."
            ) from error

    with torch.device("meta"):  # shapes only: nothing is allocated before the file has been checked
        shapes = {name: tuple(tensor.shape) for name, tensor in task_tensors(build()).items()}
    tensors = read_weights(folder / "model.safetensors", shapes)
    model = build()
    model.load_state_dict(tensors, strict=False)
    return TrainedTask(task, config, model.to(choose_device(device)).eval(), card.vocabularies)


def save_task(folder: Path, trained: TrainedTask) -> None:
    """Write everything but the weights, which the runner writes at every new best epoch."""
    words, elmo = trained.model.inputs.words, trained.model.inputs.elmo
    card = _Card(
        format=FORMAT,
        torchelmo=__version__,
        config=trained.config,
        word_dim=words.dim if words is not None else 0,
        n_fixed_words=len(words.fixed) if words is not None and words.fixed is not None else 0,
        vocabularies=dict(trained.vocabularies),
    )
    if words is not None:
        write_json(folder / "words.json", words.words, indent=0)
        if words.fixed is not None:
            write_tensors(folder / "words.safetensors", {"vectors": words.fixed})
    if elmo is not None:
        if elmo.shared is not None:
            from torchelmo.tasks.cache import link_bilm

            link_bilm(elmo.bilm, elmo.shared.folder, folder / "bilm")
        else:
            elmo.bilm.save(folder / "bilm")
    write_json(folder / "task.json", config_to_dict(card), indent=1)


def read_weights(path: Path, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Read the weights of a task model: exactly these names and shapes, finite numbers."""
    if not path.exists():
        raise MissingFileError(
            f"{path}: expected the weights of a task model, found nothing. A run writes them after its first epoch."
        )
    return read_tensors(
        path, shapes, what="the weights of this task model", advice="All files of the folder must belong to one run."
    )


def task_tensors(model: TaskModel[Any, Any]) -> dict[str, Tensor]:
    """Return the weights that belong to the task.

    A frozen biLM and fixed word vectors are saved once, in separate files. So are the softmax and the mask vector of a
    biLM that is trained with the task, because the task does not use them.
    """
    elmo, excluded = model.inputs.elmo, [_FIXED_WORDS]
    if elmo is not None:
        excluded += [f"{_BILM}softmax.", f"{_BILM}mask_vector"] if elmo.config.unfreeze else [_BILM]
    state = model.state_dict()
    return {name: tensor.detach() for name, tensor in state.items() if not name.startswith(tuple(excluded))}


def trained_parameters(model: TaskModel[Any, Any]) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def require_examples(examples: Sequence[Any], path: str | Path, task: Task[Any, Any]) -> None:
    """Raise an InputError if a labeled file has no examples."""
    if not examples:
        raise InputError(f"{path}: expected labeled examples for {task.name}, found none. Check that file.")


def example_length(task: Task[Any, Any], example: Any) -> int:
    """Return the length of the longest sentence of an example."""
    return max(map(len, task.sentences(example)), default=0)


def all_sentences(task: Task[Any, Any], examples: Iterable[Any]) -> Iterator[Sequence[str]]:
    """Yield the sentences of all examples."""
    for example in examples:
        yield from task.sentences(example)


@dataclass(frozen=True)
class _Card(Config):
    """The content of task.json."""

    format: int
    torchelmo: str  # version
    config: TaskConfig
    word_dim: Annotated[int, Range(min=0, max=2**20)]  # 0 without word vectors
    n_fixed_words: NonNegativeInt
    vocabularies: dict[str, list[str]]


def _read_card(folder: Path) -> _Card:
    path = folder / "task.json"
    if not path.exists():
        kind = "a folder without task.json" if folder.is_dir() else "no such folder"
        seeds = sorted(folder.glob("seed-*/task.json"))
        raise MissingFileError(
            f"{folder}: expected a folder that `torchelmo task train` wrote, found {kind}."
            + (f" It holds runs with several seeds: choose one of them, such as {seeds[0].parent}." if seeds else "")
        )
    plain = read_json(path, "the settings of a trained task")
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        found = plain.get("format") if isinstance(plain, dict) else plain
        raise ConfigError(f"{path}: expected a task of format {FORMAT}, found {short_repr(found)}. Train it again.")
    card = build_config(_Card, plain, where=str(path))
    for name, items in card.vocabularies.items():
        _check_unique_strings(items, f"{path}: vocabularies: {name}")
    return card


class _Words(NamedTuple):
    """The word vectors of a folder, without those in model.safetensors."""

    words: list[str]
    dim: int
    fixed: Tensor  # (n_fixed, dim)


def _read_words(folder: Path, card: _Card) -> _Words | None:
    if not card.word_dim:
        return None
    path = folder / "words.json"
    words = _check_unique_strings(read_json(path, "the words of a trained task"), str(path))
    if not words or card.n_fixed_words > len(words):
        raise ConfigError(f"{path}: expected {card.n_fixed_words or 'some'} words or more, found {len(words)}.")
    fixed = torch.zeros(0, 0)
    if card.n_fixed_words:
        shapes = {"vectors": (card.n_fixed_words, card.word_dim)}
        fixed = read_tensors(folder / "words.safetensors", shapes, what="the word vectors of a task")["vectors"]
    return _Words(words, card.word_dim, fixed)


def _build_words(words: _Words | None) -> WordEmbedding | None:
    if words is None:
        return None
    if not len(words.fixed):
        return WordEmbedding(words.words, dim=words.dim)
    learned = torch.zeros(len(words.words) - len(words.fixed), words.dim)  # their values are in model.safetensors
    fixed = words.fixed.to(learned.device)
    return WordEmbedding(words.words, torch.cat([learned, fixed]), n_fixed=len(fixed))


def _check_unique_strings(items: Any, where: str) -> list[str]:
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{where}: expected a list of strings, found {short_repr(items)}.")
    if len(set(items)) < len(items):
        raise ConfigError(f"{where}: expected distinct strings, found duplicates.")
    return items
