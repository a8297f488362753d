"""⑤ The task models of the paper, with and without ELMo: train them, score them, predict with them."""

from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.runner import train
from torchelmo.tasks.task import TASKS, Outcome, Result, Source
from torchelmo.tasks.trained import Evaluation, TrainedTask, load

__all__ = ["TASKS", "Evaluation", "Outcome", "Result", "Source", "TaskConfig", "TrainedTask", "load", "train"]
