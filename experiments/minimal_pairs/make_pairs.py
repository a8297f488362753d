"""Write minimal pairs of English agreement from templates, in the format of BLiMP.

    python experiments/minimal_pairs/make_pairs.py > experiments/minimal_pairs/agreement.jsonl
    torchelmo minimal-pairs english-small experiments/minimal_pairs/agreement.jsonl

Each phenomenon has 24 pairs, half of them singular and half plural if the phenomenon allows it. The
two sentences of a pair differ in one word. All words are frequent.
"""

import json
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import TypeVar

SIZE = 24  # pairs for each phenomenon
PEOPLE = [("boy", "boys"), ("girl", "girls"), ("teacher", "teachers"), ("doctor", "doctors"), ("soldier", "soldiers")]
PEOPLE += [("farmer", "farmers"), ("woman", "women"), ("man", "men"), ("student", "students"), ("lawyer", "lawyers")]
THINGS = [("house", "houses"), ("book", "books"), ("table", "tables"), ("letter", "letters"), ("ship", "ships")]
THINGS += [("road", "roads"), ("picture", "pictures"), ("door", "doors"), ("box", "boxes"), ("tree", "trees")]
VERBS = [("knows", "know"), ("likes", "like"), ("sees", "see"), ("hears", "hear"), ("loves", "love"), ("needs", "need")]
PLACES = ["in the garden", "at home", "in the city", "near the river", "on the hill", "behind the church", "in London"]
QUALITIES = ["old", "small", "new", "beautiful", "black", "good", "very large"]
BE = [("is", "are"), ("was", "were")]
HAVE = [("has", "have")]

Pair = tuple[str, str]
Item = TypeVar("Item")


def main() -> None:
    """Print one JSON object per line."""
    for name, term, pairs in phenomena():
        distinct = list(dict.fromkeys(islice(pairs, 10 * SIZE)))[:SIZE]
        assert len(distinct) == SIZE, f"{name}: the lists repeat after {len(distinct)} pairs"
        for number, (good, bad) in enumerate(distinct):
            record = {
                "sentence_good": good,
                "sentence_bad": bad,
                "field": "morphology" if term == "determiner_noun_agreement" else "syntax",
                "linguistics_term": term,
                "UID": name,
                "simple_LM_method": True,
                "pairID": str(number),
            }
            print(json.dumps(record))


def phenomena() -> Iterator[tuple[str, str, Iterator[Pair]]]:
    """Yield the name of each phenomenon, its term in BLiMP and its pairs."""
    verbs, nouns = "subject_verb_agreement", "determiner_noun_agreement"
    yield "verb_after_noun", verbs, after_noun()
    yield "verb_after_pronoun", verbs, after_pronoun()
    yield "be_after_noun", verbs, be_after_noun()
    yield "distractor_in_prepositional_phrase", verbs, prepositional_phrase()
    yield "distractor_in_relative_clause", verbs, relative_clause()
    yield "two_distractors", verbs, two_distractors()
    yield "coordinated_verb", verbs, coordinated_verb()
    yield "coordinated_subject", verbs, coordination()
    yield "auxiliary_have", verbs, auxiliary()
    yield "question", verbs, question()
    yield "there_is", verbs, existential()
    yield "demonstrative_and_noun", nouns, demonstrative()
    yield "quantifier_and_noun", nouns, quantifier()
    yield "reflexive_number", "anaphor_agreement", reflexive()


def alternate() -> Iterator[int]:
    """Yield 0 for singular and 1 for plural in turn, as indices of a pair of forms."""
    return cycle((0, 1))


def after_noun() -> Iterator[Pair]:
    for number, person, verb, thing in zip(alternate(), wheel(PEOPLE), wheel(VERBS, 3), wheel(THINGS, 2)):
        start = f"The {person[number]}"
        yield choose(lambda form, a=start, b=thing[0]: f"{a} {form} the {b}.", verb, number)


def after_pronoun() -> Iterator[Pair]:
    subjects = cycle([("He", 0), ("They", 1), ("She", 0), ("We", 1), ("He", 0), ("You", 1)])
    for (subject, number), verb, thing in zip(subjects, wheel(VERBS, 2), wheel(THINGS)):
        yield choose(lambda form, a=subject, b=thing[1]: f"{a} {form} the {b}.", verb, number)


def be_after_noun() -> Iterator[Pair]:
    for number, thing, be, quality in zip(alternate(), wheel(THINGS), wheel(BE, 2), wheel(QUALITIES)):
        yield choose(lambda form, a=thing[number], b=quality: f"The {a} {form} {b}.", be, number)


def prepositional_phrase() -> Iterator[Pair]:
    links = cycle(["near", "behind", "with", "next to"])
    for number, thing, link, other, be, quality in zip(
        alternate(), wheel(THINGS), links, wheel(PEOPLE, 4), wheel(BE, 2), wheel(QUALITIES)
    ):
        start = f"The {thing[number]} {link} the {other[1 - number]}"
        yield choose(lambda form, a=start, b=quality: f"{a} {form} {b}.", be, number)


def relative_clause() -> Iterator[Pair]:
    for number, person, other, verb, be, place in zip(
        alternate(), wheel(PEOPLE), wheel(PEOPLE, 4), wheel(VERBS), wheel(BE, 2), wheel(PLACES)
    ):
        start = f"The {person[number]} that the {other[1 - number]} {verb[1 - number]}"
        if person != other:
            yield choose(lambda form, a=start, b=place: f"{a} {form} {b}.", be, number)


def two_distractors() -> Iterator[Pair]:
    links = cycle(["near", "behind", "with", "next to"])
    for number, thing, link, other, last, be, quality in zip(
        alternate(), wheel(THINGS), links, wheel(PEOPLE, 4), wheel(THINGS, 3), wheel(BE, 2), wheel(QUALITIES)
    ):
        start = f"The {thing[number]} {link} the {other[1 - number]} from the {last[1 - number]}"
        if thing != last:
            yield choose(lambda form, a=start, b=quality: f"{a} {form} {b}.", be, number)


def coordinated_verb() -> Iterator[Pair]:
    ends = ["in the morning", "after the war", "every day", "at night"]
    for number, person, verb, other, thing, end in zip(
        alternate(), wheel(PEOPLE), wheel(VERBS, 5), wheel(VERBS, 2), wheel(THINGS, 3), cycle(ends)
    ):
        start = f"The {person[number]} {verb[number]} the {thing[1 - number]} {end} and"
        if verb != other:
            yield choose(lambda form, a=start: f"{a} {form} the old church.", other, number)


def coordination() -> Iterator[Pair]:
    for person, other, be, place in zip(wheel(PEOPLE), wheel(PEOPLE, 3), wheel(BE), wheel(PLACES)):
        start = f"The {person[0]} and the {other[0]}"
        if person != other:
            yield choose(lambda form, a=start, b=place: f"{a} {form} {b}.", be, 1)


def auxiliary() -> Iterator[Pair]:
    ends = ["gone home", "seen the letter", "lost the money", "found the road", "heard the story", "left the city"]
    for number, person, end in zip(alternate(), wheel(PEOPLE), cycle(ends)):
        yield choose(lambda form, a=person[number], b=end: f"The {a} {form} {b}.", HAVE[0], number)


def question() -> Iterator[Pair]:
    for number, person, be, place in zip(alternate(), wheel(PEOPLE), wheel(BE, 2), wheel(PLACES)):
        yield choose(lambda form, a=person[number], b=place: f"{form.capitalize()} the {a} {b}?", be, number)


def existential() -> Iterator[Pair]:
    for number, thing, be, place in zip(alternate(), wheel(THINGS), wheel(BE, 2), wheel(PLACES)):
        article = "many" if number else "a"
        rest = f"{article} {thing[number]} {place}"
        yield choose(lambda form, a=rest: f"There {form} {a}.", be, number)


def demonstrative() -> Iterator[Pair]:
    words = cycle([("this", 0), ("these", 1), ("that", 0), ("those", 1)])
    for (word, number), person, verb, thing in zip(words, wheel(PEOPLE), wheel(VERBS, 3), wheel(THINGS)):
        start = f"The {person[0]} {verb[0]} {word}"
        yield choose(lambda form, a=start: f"{a} {form}.", thing, number)


def quantifier() -> Iterator[Pair]:
    words = cycle([("every", 0), ("many", 1), ("each", 0), ("several", 1), ("another", 0), ("both", 1)])
    for (word, number), person, verb, thing in zip(words, wheel(PEOPLE), wheel(VERBS, 3), wheel(THINGS)):
        start = f"The {person[0]} {verb[0]} {word}"
        yield choose(lambda form, a=start: f"{a} {form}.", thing, number)


def reflexive() -> Iterator[Pair]:
    gender = {"boy": "himself", "man": "himself", "girl": "herself", "woman": "herself"}
    people = [person for person in PEOPLE if person[0] in gender]
    verbs = [("saw", "in the water"), ("hurt", "at work"), ("asked", "about it"), ("lost", "in the city")]
    verbs += [("found", "alone"), ("killed", "in the night"), ("called", "lucky")]
    for number, person, (verb, end) in zip(alternate(), wheel(people, 2), cycle(verbs)):
        forms = (gender[person[0]], "themselves")
        yield choose(lambda form, a=f"The {person[number]} {verb}", b=end: f"{a} {form} {b}.", forms, number)


def choose(sentence: Callable[[str], str], forms: Pair, number: int) -> Pair:
    """Return the sentence with the right form and with the other one."""
    return sentence(forms[number]), sentence(forms[1 - number])


def wheel(items: list[Item], repeat: int = 1) -> Iterator[Item]:
    """Repeat a list without end; `repeat` uses every item several times in a row, so that lists combine freely."""
    return (item for item in cycle(items) for _ in range(repeat))


if __name__ == "__main__":
    main()
