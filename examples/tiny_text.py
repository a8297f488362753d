"""Print a small text with a simple grammar, one tokenized sentence per line, for experiments/pretrain/tiny.toml."""

import random

PEOPLE = "Anna Boris Clara David Emma Felix Greta Hugo Ines Jonas".split()
ADJECTIVES = "small old red bright heavy broken golden quiet".split()
THINGS = "arrow bow bread candle coin drum flute lamp letter mirror song stone".split()
VERBS = "sees finds takes likes carries loses remembers".split()
PLACES = ["in the house", "by the river", "behind the garden", "under the bridge", "at school"]

pick = random.Random(2018)
for _ in range(5000):
    article, who, where = pick.choice(["a", "the"]), pick.choice(PEOPLE), pick.choice(PLACES)
    what = " ".join([article, *pick.sample(ADJECTIVES, pick.randint(0, 2)), pick.choice(THINGS)])
    does = pick.choice(VERBS)
    print(f"{who} {does} {what} {where} ." if pick.random() < 0.7 else f"{where.capitalize()} {who} {does} {what} .")
