"""An output is completed under the settings that it was begun with, or not at all."""

import re
import shutil
from pathlib import Path

import pytest

from tests.cli.jobs import Job
from tests.faults.folders import change_json

SHORT = ["--max-new-tokens", "8", "--ignore-eos", "--batch-size", "2"]


def job_of(run, folder, *options):
    job = Job(run, [*options, *SHORT], folder)
    job.write(*(f'{{"prompt": "the fox {i}"}}' for i in range(4)))
    return job


@pytest.fixture
def job(run, pair, tmp_path):
    """With a draft model and a seed."""
    return job_of(run, tmp_path, *pair, "--seed", "5")


@pytest.fixture
def own(run, models, tmp_path):
    """A job that is done, and the folder of its target, which may be changed."""
    target = Path(shutil.copytree(models / "target", tmp_path / "target"))
    job = job_of(run, tmp_path, "--target", target, "--seed", "5")
    job.succeeds()
    return job, target


OTHER = [
    (["--max-new-tokens", "9"], "max_new_tokens 8, which is now 9"),
    (["--temperature", "0.5"], "temperature 1.0, which is now 0.5"),
    (["--top-k", "3"], "top_k 0, which is now 3"),
    (["--logit-bias", "7=-inf"], "logit_bias [], which is now ['7=-inf']"),
    (["--stop", "fox"], "stop [], which is now ['fox']"),
    (["--method", "rsd-s"], "method 'adaptive', which is now 'rsd-s'"),
    (["--dtype", "float64"], "dtype 'float32', which is now 'float64'"),
    (["--seed", "6"], "seed 5, which is now 6"),
]


@pytest.mark.parametrize("left", [4, 2])
def test_other_settings_are_refused_and_the_difference_is_named(job, left):
    job.succeeds()
    job.keep(left)
    before = job.out.read_bytes()
    for options, said in OTHER:
        refused = job.fails(*options)
        assert f"{job.out}, line 1: this was made with " in refused
        assert said in refused
        assert ": give the same options as before, or name another --output" in refused
        assert job.out.read_bytes() == before


def test_another_model_is_refused_under_its_old_name_too(own, models):
    job, target = own
    other = models / "draft"
    assert f"target '{target}', which is now '{other}'" in job.fails("--target", other)
    assert f"draft None, which is now '{other}'" in job.fails("--draft", other)
    shutil.rmtree(target)
    shutil.copytree(other, target)
    assert f"target '{target}', whose files have changed since" in job.fails()


@pytest.mark.parametrize("bare", [False, True], ids=["", "without a generation config"])
def test_the_same_model_under_another_name_is_taken(own, tmp_path, bare):
    job, target = own
    if bare:
        (target / "generation_config.json").unlink()
        job.out.unlink()
        job.succeeds()
    whole = job.texts
    job.keep(1)
    job.succeeds("--target", shutil.copytree(target, tmp_path / "copy"))
    assert job.texts == whole


def test_what_changes_no_text_may_change(job):
    job.succeeds()
    whole = job.texts
    job.keep(2)
    for options in (["--batch-size", "1"], ["--temperature", "1"]):  # the model's own temperature, written out
        job.succeeds(*options)
        assert job.texts == whole


def test_a_drawn_seed_is_remembered_even_if_every_answer_has_its_own(run, pair, tmp_path):
    job = job_of(run, tmp_path, *pair)
    job.write('{"prompt": "the", "seed": 7}', '{"prompt": "fox"}', '{"prompt": "hen"}')
    job.succeeds()
    whole = job.texts
    job.keep(1)
    job.succeeds()
    assert job.texts == whole


LOGPROBS, PATTERN = ["--logprobs", "1", "--logprobs-of", "sampled"], "[0-9]{2}-[a-z]"


@pytest.mark.parametrize(
    ("options", "others", "name"),
    [
        (LOGPROBS, [[], ["--logprobs", "2", "--logprobs-of", "sampled"], ["--logprobs", "1"]], "logprobs"),
        (["--regex", PATTERN], [[], ["--regex", "a+"]], "grammar"),
    ],
    ids=["logprobs", "grammar"],
)
def test_log_probabilities_and_grammars_are_settings_too(job, options, others, name):
    job.succeeds(*options)
    whole = job.texts
    if name == "grammar":
        assert all(re.fullmatch(PATTERN, text) for text, _ in whole.values())
    else:
        assert all(len(answer["logprobs"]) == 8 for answer in job.answers)
    job.keep(2)
    for other in others:
        assert f"{name} " in job.fails(*other)
    job.succeeds(*options)
    assert job.texts == whole
    job.out.unlink()
    job.succeeds()
    assert f"settings that it does not hold ({name}" in job.fails(*options)


# Files of a model -----------------------------------------------------------------------------------------------------


EDITS = [
    ("generation_config.json", {"eos_token_id": [0, 7]}, "eos [0], which is now [0, 7]"),
    ("generation_config.json", {"forced_eos_token_id": 9}, "final_token None, which is now 9"),
    ("generation_config.json", {"min_new_tokens": 3}, "generation_config"),
    ("tokenizer_config.json", {"padding_side": "left"}, "whose files have changed since"),
]


@pytest.mark.parametrize(("left", "name", "values", "said"), [*((2, *edit) for edit in EDITS), (4, *EDITS[3])])
def test_edited_files_of_a_target_are_noticed(own, left, name, values, said):
    job, target = own
    job.keep(left)
    change_json(target / name, **values)
    assert said in job.fails()
    assert len(job.answers) == left
