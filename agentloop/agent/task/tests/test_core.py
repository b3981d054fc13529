import unittest

from slugify_lite import slugify, unique_slug


class SlugifyTest(unittest.TestCase):
    def test_words_are_joined_by_hyphens(self):
        self.assertEqual(slugify("Hello World"), "hello-world")

    def test_punctuation_sets_words_apart(self):
        self.assertEqual(slugify("  Fast, faster... fastest!  "), "fast-faster-fastest")

    def test_apostrophes_vanish(self):
        self.assertEqual(slugify("Don't say it's Anna\u2019s"), "dont-say-its-annas")

    def test_accents_are_folded(self):
        self.assertEqual(slugify("Cr\u00e8me Br\u00fbl\u00e9e"), "creme-brulee")

    def test_dashes_set_words_apart(self):
        self.assertEqual(slugify("rock\u2014paper\u2013scissors"), "rock-paper-scissors")

    def test_long_titles_lose_whole_words(self):
        self.assertEqual(slugify("A rather long title", max_length=10), "a-rather")

    def test_nothing_to_keep(self):
        self.assertEqual(slugify("?!"), "")


class UniqueSlugTest(unittest.TestCase):
    def test_a_taken_slug_gets_a_number(self):
        self.assertEqual(unique_slug("Hello", {"hello", "hello-2"}), "hello-3")


if __name__ == "__main__":
    unittest.main()
