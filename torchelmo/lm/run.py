"""All state of a pre-training run: data, model, optimizer, progress. `loop.train` advances it.

out/                 a model folder with the weights of the last checkpoint; run.json, metrics.jsonl, tensorboard/
out/best/            a model folder with the weights of the lowest held-out perplexity
out/checkpoints/     see runs/checkpoint.py; every checkpoint is a model folder, too
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchelmo.bilm.config import BiLMConfig
from torchelmo.bilm.model import BiLM, BiLMState
from torchelmo.config import Config, NonNegativeFloat, NonNegativeInt, PositiveFloat, build_config, config_to_dict
from torchelmo.errors import ConfigError, InputError, WeightsError
from torchelmo.files import flush_to_disk, os_errors_as_output_error
from torchelmo.formats.load import build_folder, load, open_folder
from torchelmo.formats.tf_checkpoint import read_accumulators
from torchelmo.lm.config import CHANGEABLE_ON_RESUME, PretrainConfig
from torchelmo.lm.corpus import BEGIN_ID, Corpus
from torchelmo.lm.losses import LOSSES, OBJECTIVES, Batch, MaskedBatch, Negatives, Sampler, draw_masks, touched_rows
from torchelmo.lm.stream import STREAMS, SentenceWindow
from torchelmo.runs.checkpoint import Checkpoint, save_checkpoint
from torchelmo.runs.distributed import World, parallel
from torchelmo.runs.muon import lstm_blocks
from torchelmo.runs.optim import (
    build_optimizer,
    learning_rate,
    optimizer_shapes,
    optimizer_tensors,
    restore_optimizer,
)
from torchelmo.runs.resume import RunFolder, check_inputs, check_settings, out_of_patience
from torchelmo.runtime import onednn_products, step_seed, why_onednn_crashes
from torchelmo.text.vocabulary import Vocabulary

KIND = "pretrain"
MODEL_FILES = ("model.safetensors", "vocab.txt", "config.json")
# Everything that a run writes beside its checkpoints.
OWNED = (*MODEL_FILES, *(f"best/{name}" for name in MODEL_FILES), "metrics.jsonl", "tensorboard/events.out.tfevents.*")
log = logging.getLogger(__name__)


class HeldOutPerplexity(NamedTuple):
    """Exact perplexities of the held-out text; None for a direction that the model does not have."""

    forward: float | None
    backward: float | None
    average: float


Perplexities = tuple[PositiveFloat | None, PositiveFloat | None, PositiveFloat]  # HeldOutPerplexity as plain data


@dataclass(frozen=True)
class Progress(Config):
    """What a checkpoint records about the progress of a run."""

    step: NonNegativeInt = 0
    seconds: NonNegativeFloat = 0.0  # of training, over all parts of the run
    position: dict[str, Any] = field(default_factory=dict)  # of the stream
    first: Perplexities | None = None  # before the first step
    best: Perplexities | None = None  # lowest held-out perplexity
    best_step: NonNegativeInt = 0
    n_without_gain: NonNegativeInt = 0  # evaluations since then
    threads: NonNegativeInt = 0


@contextlib.contextmanager
def open_run(
    config: PretrainConfig, world: World | None = None, *, resume: bool = False, overwrite: bool = False
) -> Iterator["Run"]:
    """Claim `config.out` for a run and build it: new, or as the last checkpoint there left it.

    Inside the block, the folder is locked, and `onednn_products` is on. Until the run is built, no file is changed.

    Args:
        config: The settings.
        world: The processes that train together; default: this process alone, on the CPU.
        resume: Resume from the last checkpoint, if there is one.
        overwrite: Replace an older run.

    Raises:
        ConfigError: The settings do not fit the data or the run that is resumed.
        OutputExistsError: The folder holds something that must not be replaced.
    """
    world = world or World()
    claim = RunFolder(config.out, KIND, owned=OWNED, resume=resume, overwrite=overwrite, writes=world.rank == 0)
    with claim as folder, onednn_products(world.device):
        run = Run(config, world, folder.checkpoint)
        if world.sum_over_ranks([float(run.progress.step)]) != [float(run.progress.step * world.size)]:
            raise ConfigError(
                f"{config.out}: expected the same last checkpoint on all ranks, found different ones. "
                "Put out on a file system that all machines share."
            )
        if folder.checkpoint is None:
            if resume:
                log.info("%s: no checkpoint yet, starting at the beginning", config.out)
            folder.start()
        else:
            log.info("%s: resuming after step %d", config.out, run.progress.step)
            if world.rank == 0:
                publish(folder.checkpoint.folder, config.out)
        world.barrier()  # the folder is ready for all ranks
        yield run


class Run:
    """A run that is built in the same way on every rank. It writes nothing before `save` and `keep_best`.

    Args:
        config: The settings.
        world: The processes that train together; default: this process alone, on the CPU.
        checkpoint: The checkpoint to resume from. The model that `init` names is not needed then.
    """

    def __init__(
        self, config: PretrainConfig, world: World | None = None, checkpoint: Checkpoint | None = None
    ) -> None:
        self.config, self.world = config, world or World()
        _check_world(config, self.world)
        if config.threads:
            torch.set_num_threads(config.threads)
        self.corpus = Corpus(config.data)
        self.stream = STREAMS[config.objective](
            self.corpus,
            batch_size=config.batch_size // self.world.size,
            unroll=config.unroll,
            seed=config.seed,
            rank=self.world.rank,
            n_ranks=self.world.size,
        )
        self.windows: Iterator[Any] = iter(self.stream)
        if checkpoint is not None:
            self._check_resume(checkpoint)
        bilm = build_model(config, self.corpus) if checkpoint is None else _read_model(checkpoint)
        self.bilm = bilm.to(self.world.device)
        self.names, self.parameters = _trained_parameters(self.bilm, config.trained)
        blocks = lstm_blocks(self.bilm) if config.optim.name == "muon" else None
        self.optimizer = build_optimizer(config.optim, self.parameters, blocks, self.world)
        self.sampler = Sampler(len(self.corpus.vocabulary), config.negatives) if config.loss == "sampled" else None
        self.objective = self._build_objective()
        self.state: BiLMState = self.bilm.zero_state(self.stream.batch_size)
        self.progress = Progress()
        if checkpoint is not None:
            self._restore(checkpoint)
        elif config.init_accumulators:
            self._take_accumulators()

    @property
    def n_steps(self) -> int | None:
        """The last step of the run; None if `hours` gives its length."""
        if self.config.epochs is not None:
            return max(1, math.ceil(self.config.epochs * self.stream.windows_per_epoch))
        return self.config.steps

    @property
    def steps(self) -> range:
        """The steps that are still to be taken."""
        return range(self.progress.step + 1, (self.n_steps or sys.maxsize - 1) + 1)

    def share_done(self, step: int, seconds: float) -> float:
        """Return the share of the run that is done after `step` steps and `seconds` of training."""
        if self.config.hours is not None:
            return seconds / (self.config.hours * 3600.0)
        assert self.n_steps is not None
        return step / self.n_steps

    def is_over(self, progress: Progress) -> bool:
        """Return whether the run has reached its length, or has not improved for `patience` evaluations."""
        impatient = out_of_patience(progress.n_without_gain, self.config.patience)
        return impatient or self.share_done(progress.step, progress.seconds) >= 1.0

    def learning_rate(self, step: int, seconds: float) -> float:
        """Return the learning rate of a step that starts after `seconds` of training."""
        # With a time limit, assume that the step takes as long as the average step so far. Assume 1 s for the first
        # step, so that warm-up does not start at a learning rate of 0.
        pace = seconds / (step - 1) if step > 1 else 1.0
        before, after = self.share_done(step - 1, seconds), self.share_done(step, seconds + pace)
        return learning_rate(self.config.optim, step=step, before=before, after=after)

    def next_batch(self) -> Batch | MaskedBatch:
        """Return the next window of the stream, on the device, in the form that the model reads."""
        window, directions = next(self.windows), self.bilm.config.directions
        reads_words = self.bilm.config.input == "words"
        if isinstance(window, SentenceWindow):
            words = self.corpus.targets(window.ids)
            arrays = (words + 1 if reads_words else window.ids), words, window.lengths
            batch = draw_masks(
                *map(torch.from_numpy, arrays),
                share=self.config.mask_share,
                n_masks=self.config.masks_per_window,
                seed=step_seed(self.config.seed, *window.number, "masks"),
                rank=self.world.rank,
                n_ranks=self.world.size,
            )
            return MaskedBatch(*(tensor.to(self.world.device) for tensor in batch))

        def ids(array: object, direction: str) -> Tensor | None:
            return torch.as_tensor(array).to(self.world.device) if direction in directions else None

        forward, backward = (
            self.corpus.targets(array) + 1 if reads_words else array for array in (window.forward, window.backward)
        )
        return Batch(
            ids(forward, "forward"),
            ids(window.forward_targets, "forward"),
            ids(backward, "backward"),
            ids(window.backward_targets, "backward"),
            torch.from_numpy(window.forward[:, 0] == BEGIN_ID).to(self.world.device),
        )

    def state_before(self, batch: Batch | MaskedBatch) -> BiLMState:
        """Return the state that the rows carry from the previous window, reset as the settings say."""
        if not self.config.reset_state or isinstance(batch, MaskedBatch):
            return self.state
        starts = batch.starts.view(1, 1, -1, 1)
        return BiLMState(*(part.masked_fill(starts, 0.0) for part in self.state))

    def draw(self, step: int) -> Negatives | None:
        """Seed the dropout of a step, which differs between ranks, and return its negatives, which do not."""
        if self.config.dropout:
            torch.manual_seed(step_seed(self.config.seed, step, 0, f"rank {self.world.rank}"))
        if self.sampler is None:
            return None
        generator = torch.Generator().manual_seed(step_seed(self.config.seed, step, 0, "negatives"))
        return self.sampler.draw(generator)

    def average_softmax(self, batch: Batch | MaskedBatch, negatives: Negatives | None) -> None:
        """Average the rows of the softmax gradient that any rank touched in this step."""
        if self.world.size == 1 or negatives is None:
            return
        rows = [touched_rows(self.world.gather(batch.targets(), dim=0), negatives)]
        if self.bilm.config.tied_softmax:
            rows.append(self.world.gather(batch.inputs() - 1, dim=0))
        touched = torch.unique(torch.cat(rows))
        for parameter in self._softmax_parameters():
            self.world.average_rows(parameter.grad, touched)

    def keep_best(self, result: HeldOutPerplexity | None, progress: Progress) -> Progress:
        """Save the model to out/best if `result` is the lowest perplexity so far; count evaluations without a gain."""
        if result is None:
            return progress
        if progress.best is not None and result.average >= progress.best[2]:
            return replace(progress, n_without_gain=progress.n_without_gain + 1)
        if self.world.rank == 0:
            self.bilm.save(self.config.out / "best")
        return replace(progress, best=result, best_step=progress.step, n_without_gain=0)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint, by rank 0, of the state of all ranks. Every rank must call it."""
        state = BiLMState(*(self.world.gather(part, dim=2) for part in self.state))
        self.progress = replace(progress, position=self.stream.position, threads=torch.get_num_threads())
        if self.world.rank > 0:
            return
        folder = save_checkpoint(
            self.config.out,
            kind=KIND,
            step=progress.step,
            settings=config_to_dict(self.config),
            inputs=self._inputs(),
            progress=self.progress,
            tensors={"optimizer": optimizer_tensors(self.optimizer, self.names), "state": state._asdict()},
            keep=self.config.keep,
            add_files=self.bilm.save,
        )
        publish(folder, self.config.out)

    def _take_accumulators(self) -> None:
        """Start Adagrad from its state in the TensorFlow checkpoint that `init` names."""
        with open_folder(str(self.config.init)) as folder:
            sums = read_accumulators(folder)
        tensors = optimizer_tensors(self.optimizer, self.names)  # Adagrad has its state from the start
        for name in self.names:
            if name in sums:
                tensors[f"{name}/sum"] = sums[name]
        restore_optimizer(self.optimizer, self.names, tensors, str(self.config.init))

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Restore everything except the weights, which the model already has."""
        dtype = self.parameters[0].dtype
        self.progress = checkpoint.read_progress(Progress)
        if self.progress.threads != torch.get_num_threads():
            log.warning(
                "The run used %d threads and now uses %d. Resuming; results will not be bit-identical.",
                self.progress.threads,
                torch.get_num_threads(),
            )
        state = checkpoint.read("optimizer", optimizer_shapes(self.optimizer, self.names), dtype=dtype)
        restore_optimizer(self.optimizer, self.names, state, str(checkpoint.folder))
        whole = self.bilm.zero_state(self.config.batch_size)
        shapes = {name: tuple(part.shape) for name, part in whole._asdict().items()}
        parts = checkpoint.read("state", shapes, dtype=dtype)
        self.state = BiLMState(
            **{name: self.world.share(part, dim=2).to(self.world.device).clone() for name, part in parts.items()}
        )
        try:
            self.stream.seek(self.progress.position)
        except (ConfigError, InputError) as error:
            raise WeightsError(f"{checkpoint.folder}: {error}") from error

    def _check_resume(self, checkpoint: Checkpoint) -> None:
        """Check that the settings and the data are those of the run that wrote the checkpoint."""
        out, where = self.config.out, f"{checkpoint.folder}: settings"
        before = build_config(PretrainConfig, checkpoint.settings, where)
        check_settings(out, before.flat(), self.config.flat(), changeable=CHANGEABLE_ON_RESUME)
        check_inputs(out, checkpoint.inputs, self._inputs(), paths={"data": self.config.data})

    def _inputs(self) -> dict[str, str]:
        card = json.dumps(self.corpus.card, sort_keys=True)
        return {"data": hashlib.sha256(card.encode()).hexdigest()}

    def _softmax_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the softmax. Ranks exchange only the rows that a step used."""
        if self.sampler is None or self.bilm.softmax is None:
            return []
        return [self.bilm.softmax.weight, self.bilm.softmax.bias]

    def _build_objective(self) -> nn.Module:
        objective = OBJECTIVES[self.config.objective](
            self.bilm,
            LOSSES[self.config.loss],
            self._characters(),
            dropout=self.config.dropout,
            bfloat16=self.config.precision == "bfloat16",
        )
        return parallel(objective, self.world, excluded_parameters=self._softmax_parameters())

    def _characters(self) -> Tensor | None:
        if self.bilm.config.input == "words":
            return None
        width, expected = self.corpus.characters.shape[1], self.bilm.config.max_characters
        if width != expected:
            raise ConfigError(
                f"{self.config.data}: was prepared with {width} characters per word, but the model reads "
                f"{expected}. Prepare the text again with `max_characters` {expected}."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the file is mapped read-only, and is only read
            return torch.from_numpy(self.corpus.characters).to(self.world.device)


def build_model(config: PretrainConfig, corpus: Corpus) -> BiLM:
    """Build [model] with random weights, or load the model that `init` names; its softmax has the data's words."""
    vocabulary = corpus.vocabulary
    torch.manual_seed(step_seed(config.seed, 0, 0, "weights"))
    if config.init is None:
        bilm, new_softmax = BiLM(config.model_config(len(vocabulary)), vocabulary), True
        bilm.origin = f"trained on {config.data.name}"
    else:
        given = load(str(config.init)).dequantized()  # a name of a model in the package is a string
        if given.config.objective != config.objective:
            raise ConfigError(
                f"{config.init}: was trained with objective = {given.config.objective!r}, and the settings have "
                f"{config.objective!r}. Use the objective of the model."
            )
        bilm = with_softmax(given, vocabulary, where=str(config.init))
        new_softmax = bilm is not given
    if corpus.lang is not None or corpus.pretokenized:
        bilm.lang, bilm.pretokenized = corpus.lang, corpus.pretokenized
    if config.unigram_bias and new_softmax and bilm.softmax is not None:
        bilm.softmax.start_from_counts(torch.from_numpy(corpus.target_counts))
    return bilm


def with_softmax(bilm: BiLM, vocabulary: Vocabulary, where: str = "model") -> BiLM:
    """Return `bilm` if its softmax has these words, or a copy with a new softmax if it has none.

    Raises:
        ConfigError: The model has other words.
    """
    if bilm.config.softmax_words:
        if bilm.vocabulary != vocabulary:
            raise ConfigError(
                f"{where}: its softmax has {bilm.config.softmax_words} words, and the data was prepared with "
                f"{len(vocabulary)} other words. Prepare the text with the vocab.txt of the model."
            )
        return bilm
    if bilm.config.input == "words" and bilm.vocabulary != vocabulary:
        raise ConfigError(
            f"{where}: reads {bilm.config.n_words} words, and the data was prepared with other words. "
            "Prepare the text with the vocab.txt of the model."
        )
    config: BiLMConfig = replace(bilm.config, softmax_words=len(vocabulary))
    new = BiLM(config, vocabulary)
    with torch.no_grad():
        for name, tensor in bilm.own_tensors().items():
            new.get_parameter(name).copy_(tensor)
    new.origin, new.official_options = bilm.origin, bilm.official_options
    new.lang, new.pretokenized = bilm.lang, bilm.pretokenized
    return new


def publish(folder: Path, out: Path) -> None:
    """Make `out` a model folder with the weights of `folder`. Each file is replaced atomically."""
    with os_errors_as_output_error(out):
        for name in MODEL_FILES:
            temporary = out / f".{name}.tmp"
            temporary.unlink(missing_ok=True)
            try:
                os.link(folder / name, temporary)  # no second copy of the bytes
            except OSError:
                shutil.copyfile(folder / name, temporary)
                flush_to_disk(temporary)
            os.replace(temporary, out / name)
            temporary.unlink(missing_ok=True)  # renaming one link of a file to another does nothing


def _read_model(checkpoint: Checkpoint) -> BiLM:
    """Read the model of a checkpoint. The shapes in the file are checked before memory is allocated."""
    with torch.device("meta"):
        bilm = build_folder(checkpoint.folder)
    shapes = {name: tuple(tensor.shape) for name, tensor in bilm.own_tensors().items()}
    bilm.assign_parameters(checkpoint.read("model", shapes, dtype=torch.get_default_dtype()))
    return bilm


def _trained_parameters(bilm: BiLM, trained: str) -> tuple[list[str], list[nn.Parameter]]:
    """Return the names and parameters that are trained; all others no longer require a gradient."""
    chosen = {
        name: parameter
        for name, parameter in bilm.named_parameters()
        if trained == "all" or name.startswith("softmax.")
    }
    for parameter in bilm.parameters():
        parameter.requires_grad_(any(parameter is other for other in chosen.values()))
    return list(chosen), list(chosen.values())


def _check_world(config: PretrainConfig, world: World) -> None:
    if config.batch_size % world.size:
        raise ConfigError(
            f"batch_size counts the rows of all ranks together: expected a multiple of {world.size}, "
            f"the number of ranks, got {config.batch_size}."
        )
    if config.precision == "bfloat16" and world.device.type == "cpu" and (reason := why_onednn_crashes()):
        raise ConfigError(f"precision = 'bfloat16' is not available on this machine: {reason}.")
