"""What cannot be loaded, reached, held or honoured is said with the file, the option or the value that would mend it."""

import pytest
import torch

from draftwood import ConfigError, LoadOptions, ModelError, load, load_translator
from draftwood.cli.group import as_failure
from draftwood.core.errors import is_out_of_memory
from tests.faults.folders import change_json, save_tiny

ON_CPU = LoadOptions(dtype="float32", device="cpu", backend="torch")


@pytest.fixture
def folder(tmp_path):
    return save_tiny(tmp_path / "model")


# Files ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [load, load_translator])
def test_an_empty_folder_or_a_file_is_refused(tmp_path, folder, how):
    for path, said in (
        (tmp_path, "holds no config.json: give a folder"),
        (folder / "model.safetensors", "is not a GGUF file: it begins with .* or the folder of the model"),
    ):
        with pytest.raises(ModelError, match=f"'{path}' {said}"):
            how(path, options=ON_CPU)


def truncated(path, left_out=20):
    path.write_bytes(path.read_bytes()[:-left_out])


def in_shards(folder):
    load(folder, options=ON_CPU).target.model.save_pretrained(folder, max_shard_size="10KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    truncated(shards[1], 100)


def with_code(folder):
    auto = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}
    change_json(folder / "config.json", model_type="own_kind", auto_map=auto)
    (folder / "own.py").write_text("raise SystemExit('this must not run')\n")


def generation(text):
    return lambda folder: (folder / "generation_config.json").write_text(text)


UNREADABLE = r"generation_config\.json cannot be read as JSON .*: correct it, or remove it"
DAMAGED = [
    (in_shards, r"its file '.*model-00002-of-.*' cannot be read .*copy or download that file"),
    (lambda folder: truncated(folder / "tokenizer.json"), r"its file '.*tokenizer\.json' cannot be read"),
    (lambda folder: change_json(folder / "config.json", num_attention_heads=3), r"size \(\d+\) is not a multiple of the"),
    (lambda folder: truncated(folder / "config.json"), r"its file '.*/config\.json' cannot be read"),
    (with_code, r"give --trust-remote-code, in Python LoadOptions\(trust_remote_code=True\)"),
    *((generation(text), UNREADABLE) for text in ("{", "[]", "")),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGED)
def test_a_file_that_cannot_be_used_is_named(folder, damage, said):
    damage(folder)
    with pytest.raises(ModelError, match=said):
        load(folder, options=ON_CPU)


@pytest.mark.parametrize("given", [5, "", None, torch.nn.Linear(1, 1)])
def test_what_is_no_name_is_refused(folder, given):
    target, draft = (folder, given) if given is not None else (None, folder)
    with pytest.raises((ModelError, ConfigError), match=r"give the name of a hub model or a folder|name the target too"):
        load(target, draft, options=ON_CPU)


# The hub ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def online(monkeypatch):
    """Sets up a hub that answers every request with a status, or not at all; returns the requests for a model.

    Nobody sleeps between attempts.
    """
    from huggingface_hub import constants, set_client_factory
    from huggingface_hub.utils import _http as theirs

    http = vars(theirs).get("httpx2") or vars(theirs)["httpx"]  # the name depends on its version

    def set_up(status):
        asked = []

        def answer(request):
            if "no-model" in str(request.url):  # not what the library asks on its own account
                asked.append(str(request.url))
            if status is None:
                raise http.ConnectError("Name or service not known")
            return http.Response(status, headers={"X-Error-Code": "RepoNotFound"})

        set_client_factory(lambda: http.Client(transport=http.MockTransport(answer)))
        return asked

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: pytest.fail(f"waited {seconds} s"))
    yield set_up
    set_client_factory(theirs.default_client_factory)
    theirs.close_session()


@pytest.mark.parametrize("how", [load, load_translator])
@pytest.mark.parametrize(
    ("status", "name", "said", "requests"),
    [
        (None, "nobody/no-model", r"'nobody/no-model'.* could not be reached \(Name or service not known\); check", 1),
        (404, "nobody/no-model", "the hub knows no such model; check the name", 1),
        (None, "no model", "neither a folder nor a possible name on the hub", 0),
    ],
)
def test_the_hub_is_asked_once_or_not_at_all(online, how, status, name, said, requests):
    asked = online(status)
    with pytest.raises(ModelError, match=said):
        how(name, options=ON_CPU)
    assert len(asked) == requests


# Memory -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 99 bytes."),
        RuntimeError("Check 'false' failed at src/core/src/runtime/allocator.cpp:\nstd::bad_alloc"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"),
    ],
)
def test_too_little_memory_is_no_fault_of_draftwood(error):
    failure = as_failure(error)
    assert failure is not None
    assert failure.message.startswith("out of memory: lower --batch-size or --max-new-tokens")


def test_a_real_allocation_that_fails_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert [is_out_of_memory(error) for error in (caught.value, RuntimeError("shape mismatch"))] == [True, False]


def test_a_model_that_does_not_fit_is_named(folder, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000000000 bytes")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(ModelError, match=r"model' cannot be loaded: it needs more memory than there is; take"):
        load(folder, options=ON_CPU)
