"""Tokens as treebanks write them, and as people do."""

_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


def unescape(token: str) -> str:
    r"""Treebanks keep brackets and slashes for themselves and write others in their place.

    >>> [unescape(token) for token in ["-LRB-", "co-writer\\/director", "film"]]
    ['(', 'co-writer/director', 'film']
    """
    return _BRACKETS.get(token.upper(), token.replace(r"\/", "/").replace(r"\*", "*"))
