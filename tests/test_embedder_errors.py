"""embed: wrong settings and sentences are errors that say what was expected."""

import pytest
from facts import mentions

from torchelmo import Elmo
from torchelmo.errors import ConfigError, InputError


@pytest.fixture
def elmo(tiny_bilm) -> Elmo:
    return Elmo(tiny_bilm)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"layers": "bottom"}, ["layers", "'all'", "'top'", "'average'", "'mix'", 0, 2, "'bottom'"]),
        ({"layers": 3}, ["layers", 0, 2, 3]),
        ({"layers": -4}, ["layers", 0, 2, -4]),
        ({"layers": 1.0}, ["layers", 0, 2, 1.0]),
        ({"layers": True}, ["layers", 0, 2, True]),
        ({"layers": None}, ["layers", 0, 2, None]),
        ({"batch_tokens": 0}, ["batch_tokens", 1, 0]),
        ({"precision": "float64"}, ["precision", "'float32'", "'float16'", "'float64'"]),
        ({"state": "keep"}, ["state", "'reset'", "'carry'", "'keep'"]),
    ],
)
def test_wrong_settings_are_errors_at_the_call(options, facts, elmo):
    with pytest.raises(ConfigError, match=mentions(*facts)):
        elmo.stream([["bow"]], **options)


@pytest.mark.parametrize(
    ("sentences", "facts"),
    [
        ("one string", ["embed", "[text]"]),
        (b"bytes", ["embed", "[text]"]),
        (None, ["embed", None]),
        (7, ["embed", 7]),
        ([["a"], [3]], [1, "token 0", 3]),
        ([["a"], 3], [1, 3]),
        ([["a"], None], [1, None]),
        ([b"bytes"], [0, "b'bytes'"]),
    ],
)
def test_wrong_sentences(sentences, facts, elmo):
    with pytest.raises(InputError, match=mentions(*facts)):
        elmo.embed(sentences)


def test_an_unknown_language(elmo):
    with pytest.raises(ConfigError, match=mentions("'qq'", "spaCy")):
        elmo.embed(["text"], lang="qq")
