"""The house rules that a machine can check."""

import ast
import builtins
import functools
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import draftwood
from draftwood.runners.native.families import FAMILIES

ROOT = Path(draftwood.__file__).parent
FLOORS = [
    # Rooms of one floor do not know each other; a room may import rooms of lower floors only.
    ["core"],
    ["grammar", "hardware", "native"],
    ["sampling"],
    ["runners"],
    ["draft", "verify", "loading"],
    ["trace"],
    ["engine"],
    ["api"],
    ["translation"],
    ["hf", "train", "exactness", "tune", "serve"],
    ["ray"],
    ["cli"],
]
INNER = {
    # The order inside a room: folders and modules of one floor may know each other.
    "runners": [
        ["protocols", "rows", "plain_config"],
        ["cache", "forward"],
        ["slots", "context", "shared_tokens"],
        ["support"],
        ["torch_runner", "native"],
        ["seq2seq", "blocks", "hidden", "intersection"],
        ["backends"],
        ["factory"],
    ],
    "serve": [
        ["http"], ["decoding"], ["openai"], ["page"], ["service"], ["models"], ["registry"], ["dialects"], ["document"],
        ["app"], ["run"],
    ],
}  # fmt: skip
BUDGETS = {
    # Lines of each room, at most: about 2 % above what is there. A room that must grow says what it replaces.
    "core": 2537, "grammar": 546, "hardware": 368, "native": 547, "sampling": 1361, "runners": 7154, "draft": 2792,
    "verify": 638, "loading": 3914, "trace": 2675, "engine": 3454, "hf": 333, "train": 1648, "exactness": 1428, "tune": 363,
    "serve": 6690, "ray": 678, "cli": 3640,
}  # fmt: skip
NATIVE = 5_230
"""Lines of C++ of the native engine, at most."""
TESTS = 34_370
"""Lines of the tests, at most."""
BENCHMARK_LINES = 6_723
"""Lines of the benchmarks, at most: one whose question no page asks goes."""
ALL_TEXT = 93_670
"""Lines of all that somebody must maintain, at most: what a room gains, another gives."""
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
FILES = sorted(ROOT.rglob("*.py"))
parsed = functools.cache(ast.parse)


def floor_of(name, floors):
    found = [floor for floor, names in enumerate(floors) if name in names]
    assert found, f"{name!r} has no floor: give it one here and in docs/house.md"
    return found[0]


def module_of(path):
    """The dotted name, without the package's own."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(source):
    """Dotted names of all that a file imports at any place: ``module.name``, or ``module`` alone."""
    out = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            out += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            out += [alias.name for alias in node.names]
    return out


def imports(source):
    """Modules of the package that a source imports anywhere, without the package's own name."""
    modules = [
        name if known(name) else name.rpartition(".")[0] for name in imported(source) if name.startswith("draftwood.")
    ]
    return [name.removeprefix("draftwood.") for name in modules if name != "draftwood"]


def known(name):
    path = ROOT.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def goes_up(module, imported):
    """Whether an import goes up or sideways, between rooms or inside one."""
    (room, *inner), (other_room, *other_inner) = module.split("."), imported.split(".")
    if room != other_room:
        return floor_of(other_room, FLOORS) >= floor_of(room, FLOORS)
    if room not in INNER or not inner or not other_inner or inner[0] == other_inner[0]:
        return False
    return floor_of(other_inner[0], INNER[room]) > floor_of(inner[0], INNER[room])


def broken(paths, check):
    """What a check finds wrong in files, by the file's name."""
    found = {str(path.relative_to(ROOT.parents[1])): check(path) for path in paths}
    return {name: wrong for name, wrong in found.items() if wrong}


def test_imports_go_down_only():
    # `cli` hands its lazily loaded commands out by name; nothing below it may import it.
    files = [path for path in FILES if path.parent != ROOT or path.stem[0] != "_"]
    assert not broken(files, lambda path: [name for name in imports(path.read_text()) if goes_up(module_of(path), name)])


def test_control_an_arrow_that_goes_up_is_seen():
    found = imports("from draftwood.engine.decode import Decoder\nimport draftwood.runners.backends\n")
    assert [goes_up("draft.level", name) for name in found] == [True, False]
    assert goes_up("draft.level", "verify.coupled")
    assert goes_up("runners.slots", "runners.factory")
    assert goes_up("serve.decoding.jobs", "serve.openai.prepare")


def test_rooms_are_those_that_exist():
    here = {module_of(path).split(".")[0] for path in FILES}
    assert {name for names in FLOORS for name in names} == {name for name in here if name[0] != "_"}
    for room, floors in INNER.items():
        inside = {path.relative_to(ROOT / room).parts[0].removesuffix(".py") for path in (ROOT / room).rglob("*.py")}
        assert {name for names in floors for name in names} == inside - {"__init__"}
    assert len([path for path in ROOT.iterdir() if path.suffix == ".py"]) <= 5, "the root is for the ways in"


def lines(paths):
    return sum(path.read_text().count("\n") for path in paths)


@pytest.mark.parametrize("room", BUDGETS)
def test_rooms_keep_to_their_budgets(room):
    assert lines((ROOT / room).rglob("*.py")) <= BUDGETS[room]


def test_the_native_engine_keeps_to_its_budget():
    found = [path for path in (ROOT / "native").iterdir() if path.suffix in (".cpp", ".h")]
    assert 0 < lines(found) <= NATIVE


def test_tests_keep_to_their_budget():
    assert lines((ROOT.parents[1] / "tests").rglob("*.py")) <= TESTS
    assert BUDGETS.keys() == {path.name for path in ROOT.iterdir() if list(path.rglob("*.py"))} - {"__pycache__"}


def test_benchmarks_keep_to_their_budget():
    assert 0 < lines((ROOT.parents[1] / "benchmarks").rglob("*.py")) <= BENCHMARK_LINES


def test_all_text_keeps_to_its_budget():
    top = ROOT.parents[1]
    folders, kinds = ("src", "tests", "benchmarks", "recipes", "docs"), ("py", "cpp", "h", "md")
    patterns = [f"{folder}/**/*.{kind}" for folder in folders for kind in kinds]
    patterns += ["scripts/*", "scripts/pages/*.py"]
    texts = {path for pattern in patterns for path in top.glob(pattern) if path.is_file()}
    assert 0 < lines([*texts, top / "README.md", top / "CHANGELOG.md"]) <= ALL_TEXT


def test_what_a_model_type_is_stands_in_its_row_alone():
    names = {*FAMILIES} | {name for own in FAMILIES.values() for name in (own.name, own.whole)}
    facts = {name for name in names if "_" in name or "For" in name} | {"shortconv.l_cache", "qwen3next", "granitehybrid"}
    facts -= {"LlamaForCausalLM", "qwen3_5_text", "qwen3_5_moe_text"}  # EAGLE's, and layers of MTP heads
    assert len(facts) > 35
    homes = {fact: [module_of(path) for path in FILES if f'"{fact}"' in path.read_text()] for fact in facts}
    assert homes == {fact: ["runners.native.families"] for fact in facts}
    assert [module_of(path) for path in FILES if "attn_q_norm" in path.read_text()] == ["runners.native.family"]


DRAFTS = {
    "BlockRunner", "DrafterModule", "PublishedDrafter", "BlockDrafter", "HiddenBlockDrafter",
    "Eagle3Drafter", "DFlashDrafter", "DFlashConfig", "Eagle3Config", "MtpDrafter", "MaskedBlockDrafter",
}  # fmt: skip
"""Classes of drafts, of which 23 lines in 13 files once asked what a draft is."""


def draft_questions(source):
    """Classes of drafts that ``isinstance`` asks for, and calls of what decides the kind of a draft."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            asked = node.args if node.func.id == "isinstance" else []
            names = [name.id for arg in asked for name in ast.walk(arg) if isinstance(name, ast.Name)]
            found += [name for name in names if name in DRAFTS] + [node.func.id] * (
                node.func.id in ("draft_kind", "_kind_of")
            )
    return found


def test_what_a_draft_is_is_decided_where_it_is_loaded():
    found = {module_of(path): asked for path in FILES if (asked := draft_questions(path.read_text()))}
    assert set().union(*(found.pop(name) for name in ("runners.factory", "runners.hidden.module"))) == {"draft_kind"}
    assert found == {"loading.plan": ["_kind_of"]}


def test_which_engine_runs_a_pair_is_chosen_in_one_place():
    found = [module_of(path) for path in FILES if "choose_engine(" in path.read_text()]
    assert found == ["cli.facts", "loading.plan", "runners.backends", "runners.factory"]


def test_control_a_question_about_a_draft_is_seen():
    assert draft_questions("if isinstance(a, X | BlockRunner): draft_kind(b)") == ["BlockRunner", "draft_kind"]


def test_no_module_imports_itself_by_way_of_others():
    graph = {module_of(path): set(imports(path.read_text())) for path in FILES}
    modules = {name: imported & graph.keys() for name, imported in graph.items() if name != "__init__"}
    list(TopologicalSorter(modules).static_order())  # raises CycleError, which names the circle


def test_control_a_circle_is_seen():
    with pytest.raises(CycleError):
        list(TopologicalSorter({"a": {"b"}, "b": {"a"}}).static_order())


BENCHMARKS = sorted(path for name in ("benchmarks", "recipes") for path in (ROOT.parents[1] / name).rglob("*.py"))


def private(source):
    """Names of the package that a file imports though an underscore says that they are the package's own."""
    names = [name.split(".") for name in imported(source)]
    return [".".join(parts) for parts in names if parts[0] == "draftwood" and any(part.startswith("_") for part in parts)]


def test_benchmarks_import_public_names_of_the_package_and_no_module_of_it_imports_them():
    assert not broken(BENCHMARKS, lambda path: private(path.read_text()))
    out = {"benchmarks", "recipes"}
    assert not broken(FILES, lambda path: {name.split(".")[0] for name in imported(path.read_text())} & out)


def test_control_private_names_are_seen():
    source = "from draftwood.tune.run import Tuning, _shuffled\nfrom draftwood._version import x\nimport benchmarks.run\n"
    assert private(source) == ["draftwood.tune.run._shuffled", "draftwood._version.x"]
    assert "benchmarks.run" in imported(source)


def test_the_wheel_holds_the_package_alone():
    target = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert target == {"packages": ["src/draftwood"], "hooks": {"custom": {}}}
    assert not [path for path in ROOT.rglob("*") if path.is_dir() and path.name.startswith("bench")]


def test_public_names():
    assert draftwood.__all__ == [
        "METHODS", "VERIFIERS", "CacheError", "ConfigError", "Decoder", "DraftTree", "DraftwoodError", "Grammar",
        "Limits", "LoadOptions", "LogprobSettings", "Method", "ModelError", "NumericsError", "Pair", "PairingError",
        "Piece", "Request", "Result", "Round", "Sampling", "Stateless", "Stats", "TokenLogprob", "TokenTexts", "Trace",
        "TraceSettings", "Translator", "Verdict", "__version__", "hf", "load", "load_translator",
    ]  # fmt: skip
    for name in draftwood.__all__:
        assert getattr(draftwood, name) is not None
    assert callable(draftwood.hf.recipe)
    with pytest.raises(AttributeError, match="nonsense"):
        draftwood.nonsense  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    code = "import sys, draftwood; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT.parent).returncode == 0


def large(path):
    """Functions of more than 50 lines and what is never written; a file of more than 300 lines lacks a noun, as they do."""
    source = path.read_text()
    found = [f"{source.count(chr(10))} lines"] if source.count("\n") > 300 else []
    for node in ast.walk(parsed(source)):
        long = isinstance(node, FUNCTIONS) and node.end_lineno - node.lineno > 50
        if long or isinstance(node, ast.Global) or (isinstance(node, ast.ExceptHandler) and node.type is None):
            found.append(f"{type(node).__name__} in line {node.lineno}")
    return found


def test_files_and_functions_stay_small():
    assert not broken(FILES + BENCHMARKS, large)


def undefined(source):
    """Names that a file reads and nothing in it defines. The type checker does not see them: shapes are names in strings."""
    tree, defined = parsed(source), {*dir(builtins), "__file__"}
    for node in ast.walk(tree):
        named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs
        if isinstance(node, named) and node.name:
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            defined.add(node.id)
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return read - defined


def test_every_name_is_defined():
    assert not broken(FILES + BENCHMARKS, lambda path: undefined(path.read_text()))


def test_control_an_undefined_name_is_seen():
    assert undefined("import a\ndef f(x):\n    return a.b(x, missing)\n") == {"missing"}


def attributes(node):
    """What the methods of a class set on ``self``."""
    stored = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    return {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"}


def large_classes(path):
    """Classes of more than 12 attributes, which lack a noun."""
    classes = [node for node in ast.walk(parsed(path.read_text())) if isinstance(node, ast.ClassDef)]
    return [node.name for node in classes if len(attributes(node)) > 12]


def test_classes_stay_small():
    assert not broken(FILES + BENCHMARKS, large_classes)


def test_controls_what_is_large_is_seen(tmp_path):
    lines = "\n".join(f"        self.a{i} = {i}" for i in range(51))
    (tmp_path / "large.py").write_text(f"class Large:\n    def __init__(self):\n{lines}\n        global a\n")
    assert large_classes(tmp_path / "large.py") == ["Large"]
    assert large(tmp_path / "large.py") == ["FunctionDef in line 2", "Global in line 54"]
