"""What a message must mention, whatever its wording."""

import re


def mentions(*facts: object) -> str:
    """Return a pattern for `match=` that needs every fact, in any order.

    >>> bool(re.search(mentions("a.toml", 3), "line 3 of a.toml"))
    True
    """
    return "(?s)" + "".join(f"(?=.*{re.escape(str(fact))})" for fact in facts)
