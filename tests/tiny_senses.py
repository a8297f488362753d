"""A tiny sense inventory, training text and test text, self-written, in the formats of the word sense data."""

import json
from pathlib import Path

BOW_GESTURE, BOW_WEAPON, BOW_KNOT = "bow%1:04:00::", "bow%1:06:00::", "bow%1:06:01::"
SHOW, DISPLAY, PROVE = "show%2:39:02::", "show%2:39:00::", "show%2:31:00::"
GOOD, SOUND = "good%3:00:01::", "good%5:00:00:sound:00"
TAKE_PART, TREE, SELDOM = "take_part%2:41:00::", "tree%1:20:00::", "seldom%4:02:00::"

INDEX = [  # as WordNet's: in alphabetical order, the sense number in the third column
    f"{BOW_GESTURE} 00150000 3 2",
    f"{BOW_WEAPON} 02879000 1 12",
    f"{BOW_KNOT} 02880000 2 5",
    f"{GOOD} 01123000 1 190",
    f"{SOUND} 01124000 2 12",
    f"{SELDOM} 00035000 1 4",
    f"{PROVE} 00664000 2 90",
    f"{DISPLAY} 02137000 3 40",
    f"{SHOW} 02148000 1 99",
    f"{TAKE_PART} 02450000 1 20",
    f"{TREE} 13104000 1 30",
]

TRAIN = [
    ("He drew his bow and let the arrow fly", {3: [BOW_WEAPON]}),
    ("She made a deep bow to the king", {4: [BOW_GESTURE]}),
    ("The actors took a bow", {4: [BOW_GESTURE]}),
    ("A red bow held her hair", {2: [BOW_KNOT]}),
    ("Show me your good arrows", {0: [SHOW, DISPLAY], 3: [GOOD]}),
    ("That shows a good mind", {1: [PROVE], 3: [SOUND]}),
    ("They took_part in the show", {1: [TAKE_PART]}),
    ("Nothing here has a tag", {}),
    ("A tall tree fell", {2: [TREE]}),  # which the test data does not ask for
    ("The bow of an older WordNet", {1: ["bow%1:06:99::"]}),
]

# (word, lemma, part of speech, keys) or a plain word
TEST = [
    ["The", "singer", "took", "a", ("bow", "bow", "NOUN", [BOW_GESTURE])],
    ["His", ("bows", "bow", "NOUN", [BOW_WEAPON, BOW_KNOT]), "and", "arrows", "&", "<knives>"],
    ["It", ("shows", "show", "VERB", [PROVE]), "a", ("good", "good", "ADJ", [SOUND]), "heart"],
    ["All", ("took part", "take_part", "VERB", [TAKE_PART]), ("seldom", "seldom", "ADV", [SELDOM])],  # not in TRAIN
    ["A", ("zyzzyva", "zyzzyva", "NOUN", ["zyzzyva%1:05:00::"]), "in", "a", "cage"],  # not in the inventory
]


def write_all(folder: Path) -> dict[str, Path]:
    """The four files that `torchelmo analyse wsd` takes, by their flags."""
    paths = {"train": "train.jsonl", "test": "test.data.xml", "keys": "test.gold.key.txt", "senses": "index.sense"}
    files = {flag: folder / name for flag, name in paths.items()}
    files["senses"].write_text("".join(line + "\n" for line in INDEX))
    lines = [{"tok": text.split(), "senses": senses} for text, senses in TRAIN]
    files["train"].write_text("".join(json.dumps(line) + "\n" for line in lines))
    xml, keys = as_xml(TEST)
    files["test"].write_text(xml)
    files["keys"].write_text(keys)
    return files


def as_xml(sentences) -> tuple[str, str]:
    """The XML of the unified framework, and its keys."""
    lines, keys = ['<?xml version="1.0" encoding="UTF-8" ?>', '<corpus lang="en" source="tiny">', '<text id="d0">'], []
    for i, sentence in enumerate(sentences):
        lines.append(f'<sentence id="d0.s{i}">')
        for j, item in enumerate(sentence):
            if isinstance(item, str):
                escaped = item.replace("&", "&amp;").replace("<", "&lt;")
                lines.append(f'<wf lemma="x" pos="X">{escaped}</wf>')
            else:
                text, lemma, pos, senses = item
                lines.append(f'<instance id="d0.s{i}.t{j}" lemma="{lemma}" pos="{pos}">{text}</instance>')
                keys.append(f"d0.s{i}.t{j} {' '.join(senses)}\n")
        lines.append("</sentence>")
    return "\n".join([*lines, "</text>", "</corpus>", ""]), "".join(keys)
