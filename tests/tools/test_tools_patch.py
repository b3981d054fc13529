"""The patch format: what applies, what does not, and what the message says then."""

from __future__ import annotations

import pytest

from agentloop.errors import ToolFailed
from agentloop.tools.patch import AddFile, DeleteFile, UpdateFile, apply_hunks, parse

TEXT = """\
import os

class A:
    def run(self):
        return 1

class B:
    def run(self):
        return 1
"""


def patched(body: str, text: str = TEXT) -> str:
    (change,) = parse(f"*** Begin Patch\n*** Update File: f.py\n{body}\n*** End Patch")
    assert isinstance(change, UpdateFile)
    return apply_hunks(change.path, text, change.hunks)


FIRST, SECOND = "-        return 1\n+        return 2", "-        return 1\n+        return 3"
SECOND_ONLY = TEXT[::-1].replace("1 nruter", "2 nruter", 1)[::-1]

GOOD = {
    "replace with context": (
        f"@@\n class A:\n     def run(self):\n{FIRST}",
        TEXT.replace("return 1", "return 2", 1),
    ),
    "without the first marker": ("-import os\n+import sys", TEXT.replace("os", "sys")),
    "an anchor chooses the place": (f"@@ class B:\n{FIRST}", SECOND_ONLY),
    "two anchors": (f"@@ class B:\n@@ def run(self):\n{FIRST}", SECOND_ONLY),
    "the anchor repeated as context": (
        f"@@ class B:\n class B:\n     def run(self):\n{FIRST}",
        SECOND_ONLY,
    ),
    "two hunks": (
        f"@@ class A:\n{FIRST}\n@@ class B:\n{SECOND}",
        TEXT.replace("return 1", "return 2", 1).replace("return 1", "return 3"),
    ),
    "hunks set apart by an empty line": (
        "@@\n-import os\n+import re\n\n@@ class B:\n" + FIRST + "\n",
        SECOND_ONLY.replace("import os", "import re"),
    ),
    "an empty context line without its space": (
        "@@\n-import os\n+import re\n\n class A:",
        TEXT.replace("import os", "import re"),
    ),
    "line numbers are not trusted": (
        "@@ -40,2 +40,2 @@ class A:\n-import os\n+import re",
        TEXT.replace("import os", "import re"),
    ),
    "insert after an anchor": ("@@ import os\n+import re", TEXT.replace("os\n", "os\nimport re\n")),
    "insert at the end": ("@@\n+# end", TEXT + "# end\n"),
    "at the end of the file": (
        f"@@\n     def run(self):\n{FIRST}\n*** End of File",
        SECOND_ONLY,
    ),
    "delete lines": ("@@\n-import os\n-\n class A:", TEXT.removeprefix("import os\n\n")),
    "trailing whitespace differs": ("@@\n-import os  \n+import re", TEXT.replace("os", "re")),
    "indentation differs": (
        "@@\n class A:\n def run(self):\n-return 1\n+        return 2",
        TEXT.replace("return 1", "return 2", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), GOOD.values(), ids=GOOD.keys())
def test_a_good_hunk_applies(body: str, expected: str) -> None:
    assert expected != TEXT
    assert patched(body) == expected


def test_an_exact_place_wins_over_an_earlier_loose_one() -> None:
    assert patched("@@\n-  x\n+  y", "x\n  x\n") == "x\n  y\n"


def test_line_ends_stay_as_they_are() -> None:
    assert patched("@@\n a\n-b\n+c\n+d", "a\r\nb\r\n") == "a\r\nc\r\nd\r\n"
    assert patched("@@\n a\n-b\n+c", "a\nb") == "a\nc"
    assert patched("@@\n a\n-b\n+c\n+d", "a\r\nb") == "a\r\nc\r\nd"
    assert patched("@@\n+a", "") == "a\n"
    assert patched("@@\n-a", "a\n") == ""


def test_a_patch_with_crlf_applies_to_a_file_without() -> None:
    patch = "*** Begin Patch\r\n*** Update File: f\r\n@@\r\n-a\r\n+b\r\n*** End Patch\r\n"
    (change,) = parse(patch)
    assert isinstance(change, UpdateFile)
    assert apply_hunks("f", "a\n", change.hunks) == "b\n"


def test_all_kinds_of_changes() -> None:
    changes = parse(
        "\n*** Begin Patch\n"
        "*** Add File: new file.txt\n+one\n+\n+*** End Patch\n"
        "*** Delete File: old.txt\n"
        "\n"
        "*** Update File: a.py\n*** Move to: b.py\n@@\n-x\n+y\n"
        "*** Update File: c.py\n*** Move to: d.py\n"
        "*** Add File: empty\n"
        "*** End Patch\n"
    )
    add, delete, update, move, empty = changes
    assert add == AddFile("new file.txt", "one\n\n*** End Patch\n")
    assert delete == DeleteFile("old.txt")
    assert isinstance(update, UpdateFile)
    assert (update.path, update.move_to, update.hunks[0].lines) == ("a.py", "b.py", ["-x", "+y"])
    assert move == UpdateFile("c.py", "d.py", [])
    assert empty == AddFile("empty", "")


MALFORMED = {
    "empty": ("", "must start with"),
    "no begin": ("*** Update File: f\n*** End Patch", "must start with '\\*\\*\\* Begin Patch'"),
    "no end": ("*** Begin Patch\n*** Delete File: f", "must end with '\\*\\*\\* End Patch'"),
    "no file": ("*** Begin Patch\n*** End Patch", "names no file"),
    "lines before a file": ("*** Begin Patch\n-x\n*** End Patch", "not '-x'"),
    "unknown header": ("*** Begin Patch\n*** Copy File: f\n*** End Patch", "Copy File"),
    "added line without a mark": (
        "*** Begin Patch\n*** Add File: f\n+a\nb\n*** End Patch",
        "f: .* not 'b'",
    ),
    "line after a deletion": (
        "*** Begin Patch\n*** Delete File: f\n-x\n*** End Patch",
        "f: nothing may follow",
    ),
    "update without hunks": ("*** Begin Patch\n*** Update File: f\n*** End Patch", "no hunks"),
    "hunk without lines": (
        "*** Begin Patch\n*** Update File: f\n@@ def g():\n*** End Patch",
        "hunk '@@ def g\\(\\):' has no lines",
    ),
    "hunk line without a mark": (
        "*** Begin Patch\n*** Update File: f\n@@\n-x\nyy\n*** End Patch",
        "f: .* not 'yy'",
    ),
}


@pytest.mark.parametrize(("patch", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_patch_names_the_line(patch: str, message: str) -> None:
    with pytest.raises(ToolFailed, match=message):
        parse(patch)


NOT_FOUND = {
    "no such lines": ("@@\n-nowhere\n+x", "f.py: its place .*'-nowhere'"),
    "no such anchor": ("@@ class C:\n-import os\n+x", "'@@ class C:' .*'-import os'"),
    "partly": ("@@\n import os\n-\n-class C:\n+x", "' import os'"),
    "not at the end": ("@@\n-import os\n+x\n*** End of File", "'-import os'"),
    "out of order": ("@@\n-class B:\n+x\n@@\n-class A:\n+y", "'-class A:'"),
    "twice the same place": ("@@\n-import os\n+x\n@@\n-import os\n+y", "'-import os'"),
}


@pytest.mark.parametrize(("body", "message"), NOT_FOUND.values(), ids=NOT_FOUND.keys())
def test_a_hunk_that_is_not_found_names_file_and_line(body: str, message: str) -> None:
    with pytest.raises(ToolFailed, match=message):
        patched(body)
