"""Titles to slugs."""

from slugify_lite.core import slugify, unique_slug

__all__ = ["slugify", "unique_slug"]
