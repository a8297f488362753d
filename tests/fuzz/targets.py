"""The kinds of input that are fuzzed, each with a good input to start from and a check of the result."""

from itertools import chain

from fuzz.models import model_targets
from fuzz.outputs import output_targets
from fuzz.runs import run_targets
from fuzz.texts import text_targets

TARGETS = {target.name: target for target in chain(model_targets(), output_targets(), run_targets(), text_targets())}
