"""Use ELMo vectors in a spaCy pipeline: one word in several sentences.

python examples/spacy_pipeline.py ["TEXT" WORD]

Default: a text about two kinds of bows.
"""

import sys

import spacy

TEXT = "He made a low bow to the king. The actors took a bow. She drew her bow and shot. A bow needs a good string."


def main() -> None:
    """Print the cosine of every two occurrences of a word."""
    text, word = sys.argv[1:3] if len(sys.argv) > 2 else (TEXT, "bow")
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", config={"layers": "top"})
    doc = nlp(text)
    usages = [token for token in doc if token.text == word]
    for one in usages:
        cosines = "  ".join(f"{one.similarity(other):.2f}" for other in usages)
        print(f"{cosines}   {one.sent.text}")


if __name__ == "__main__":
    main()
