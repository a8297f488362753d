"""A few seconds of fuzzing for every kind of input; `make fuzz MINUTES=30` runs longer."""

import pytest

from fuzz.models import FORMATS
from fuzz.run import SilentlyWrongError, Target, run_target
from fuzz.targets import TARGETS
from torchelmo.errors import InputError


# tests/formats/test_fuzz_readers.py runs these and more cases of the formats of models.
@pytest.mark.parametrize("name", [name for name in TARGETS if name not in {target.name for target in FORMATS}])
def test_damaged_input_gives_a_defined_result(name):
    some = run_target(TARGETS[name], first=0, count=3)
    more = run_target(TARGETS[name], first=3, count=297, seconds=2.0)
    assert some.counts.total() == 3
    failures = some.failures + more.failures
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "Elmo.embed"])
def test_good_input_is_accepted(name):
    target = TARGETS[name]._replace(mutate=lambda folder, rng: "nothing")
    outcome = run_target(target, first=0, count=1)
    # Settings get a random change on the command line, too, which may be refused.
    assert outcome.counts["ok"] == 1 or name == "TOML and --set", outcome


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, "ok"),
        (InputError("bad"), "refused"),
        (InputError("x" * 10_000), "message too long"),
        (KeyError("raw"), "exception"),
        (SilentlyWrongError("other numbers"), "silently wrong"),
    ],
)
def test_results_are_classified(error, kind):
    def run(folder, extra, rng):
        if error is not None:
            raise error

    target = Target("made up", lambda folder: None, lambda folder, rng: "nothing", run)
    outcome = run_target(target, first=0, count=3)
    assert outcome.counts == {kind: 3}
    assert len(outcome.failures) == (0 if kind in ("ok", "refused") else 3)
