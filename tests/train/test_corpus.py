"""Files of text: documents and lines, plain or packed; what is no text is named."""

import lzma

import pytest

from draftwood.core.errors import ConfigError
from draftwood.train.corpus import read_documents, read_lines


def test_documents_are_separated_by_a_line_of_their_own(tmp_path):
    path = tmp_path / "a.train.txt"
    path.write_text("one\nline\n<|endoftext|>\n<|endoftext|>\ntwo says <|endoftext|> inside\n<|endoftext|>\r\nthree")
    assert read_documents(path) == ["one\nline", "two says <|endoftext|> inside", "three"]


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.de", b"\n \n", "a.de holds no text"),
    ("a.de", b"Ja\n\nNein\n", "line 2 of .*a.de is empty"),
    ("a.de", b"Ja\nNein \xff\n", r"line 2 of .*a\.de is not UTF-8 text: convert"),
    ("a.de.xz", b"Ja\n", r"a\.de\.xz is not a complete xz file"),
    ("a.de.xz", lzma.compress(b"Ja\n" * 100)[:-20], r"a\.de\.xz is not a complete xz file"),
])  # fmt: skip
def test_bad_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_lines(tmp_path / name)
