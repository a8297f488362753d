"""⑤ The paper's task models, with and without ELMo: one folder per task, what they share, one runner."""

from torchelmo.tasks.config import TaskConfig
from torchelmo.tasks.runner import train
from torchelmo.tasks.task import TASKS
from torchelmo.tasks.trained import Result, TrainedTask, load

__all__ = ["TASKS", "Result", "TaskConfig", "TrainedTask", "load", "train"]
