"""Write the surprisal of every word of a text to a CSV file, with predictors that reading-time studies use.

python examples/surprisal_to_csv.py [TEXT.txt [OUT.csv]]

The columns are the sentence, the position, the word, its surprisal in bits given the words before it and given the
words after it, its length in characters, and its rank in the model's vocabulary, which is sorted by frequency (empty
for words that the vocabulary lacks; their surprisal is that of <UNK>).
"""

import csv
import sys
from pathlib import Path

from torchelmo import load
from torchelmo.lm import surprisal
from torchelmo.text.tokenize import tokenizer_for

TEXT = "The old man walked slowly down to the river. He sat on a stone and counted the boats. Nobody zorbled."


def main() -> None:
    """Read a text, measure it with the model in the package, write a CSV file."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else TEXT
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "surprisal.csv")
    bilm = load()
    assert bilm.vocabulary is not None
    rank = {word: number for number, word in enumerate(bilm.vocabulary.words)}
    tokenizer = tokenizer_for("en")
    sentences = [tokens for line in text.splitlines() for tokens in tokenizer.sentences(line)]
    n_rows = 0
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)  # quotes tokens such as "
        writer.writerow(["sentence", "position", "word", "forward", "backward", "length", "rank"])
        for number, result in enumerate(surprisal(bilm, sentences)):
            assert result.forward is not None
            assert result.backward is not None
            for position, (word, forward, backward) in enumerate(zip(result.tokens, result.forward, result.backward)):
                bits = [f"{forward:.4f}", f"{backward:.4f}"]
                writer.writerow([number, position, word, *bits, len(word), rank.get(word, "")])
                n_rows += 1
    print(f"{out}: {n_rows} words in {len(sentences)} sentences")


if __name__ == "__main__":
    main()
