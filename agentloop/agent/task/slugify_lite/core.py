"""Titles to slugs: lower case, words joined by hyphens."""

import re

_APOSTROPHES = re.compile("['\u2019]")
_WORD = re.compile(r"[a-z0-9]+")


def slugify(title: str, max_length: int | None = None) -> str:
    """The slug of a title; empty where the title has no letter or digit.

    With `max_length`, whole words are dropped from the end until the slug fits.
    """
    text = _APOSTROPHES.sub("", title)
    text = text.encode("ascii", "ignore").decode("ascii")
    words = _WORD.findall(text.lower())
    if max_length is not None:
        words = _fitting(words, max_length)
    return "-".join(words)


def unique_slug(title: str, taken: set[str]) -> str:
    """The slug of a title, with the first free number from 2 on where it is taken."""
    slug = candidate = slugify(title)
    number = 2
    while candidate in taken:
        candidate = f"{slug}-{number}"
        number += 1
    return candidate


def _fitting(words: list[str], max_length: int) -> list[str]:
    """The leading words that fit; at least the start of the first one."""
    while len(words) > 1 and len("-".join(words)) > max_length:
        words = words[:-1]
    return [word[:max_length] for word in words]
