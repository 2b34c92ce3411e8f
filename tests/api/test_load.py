"""Reading a manifest from a file, and changing it with --set."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnpipe_api.load import InvalidJob, load_job

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(InvalidJob) as refused:
        load_job(path, list(overrides))
    return str(refused.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


def test_a_missing_file_is_named(file: Path) -> None:
    assert refusal(file) == f"There is no file {file}."


def test_a_folder_is_no_manifest(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} is a folder; name the manifest file in it."


@pytest.mark.parametrize("text", ["", "---\n", "# only a comment\n"])
def test_an_empty_file_is_said_to_be_empty(file: Path, text: str) -> None:
    file.write_text(text)
    assert refusal(file) == f"{file} is empty; a GNNPipeJob manifest is expected."


def test_several_jobs_in_one_file_are_refused(file: Path) -> None:
    file.write_text("a: 1\n---\nb: 2\n")
    assert refusal(file) == f"{file} holds 2 documents; put each job into a file of its own."


def test_a_list_is_no_manifest(file: Path) -> None:
    file.write_text("- a\n")
    assert refusal(file) == f"{file} must be an object with fields, got a list."


def test_a_file_that_is_no_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00\x80")
    assert refusal(file) == f"{file} is not a text file in UTF-8."


def test_wrong_yaml_is_told_with_its_line(file: Path) -> None:
    file.write_text("kind: GNNPipeJob\nspec: {graph: [\n")
    assert refusal(file).startswith(f"{file}, line 3: not valid YAML: ")


def test_a_tab_is_told_with_its_line(file: Path) -> None:
    file.write_text("kind: GNNPipeJob\nspec:\n\tgraph: {}\n")
    assert refusal(file).startswith(f"{file}, line 3: not valid YAML: ")


def test_a_field_given_twice_is_told_with_its_line(file: Path) -> None:
    file.write_text("kind: GNNPipeJob\nspec:\n  graph: {}\n  graph: {}\n")
    assert refusal(file) == f"{file}, line 4: not valid YAML: 'graph' is given twice."


def test_an_exponent_without_a_dot_is_a_number_as_for_kubectl(file: Path) -> None:
    file.write_text(QUICKSTART.read_text().replace("learningRate: 0.01", "learningRate: 1e-3"))
    assert load_job(file).spec.training.learning_rate == 0.001


def test_json_is_yaml_too(file: Path) -> None:
    job = load_job(QUICKSTART)
    file.write_text(job.model_dump_json(by_alias=True, exclude_none=True))
    assert load_job(file) == job


def test_set_changes_fields_and_makes_missing_sections() -> None:
    job = load_job(
        QUICKSTART,
        [
            "spec.training.epochs=5",
            "spec.parallelism.stages=auto",
            "spec.checkpoint.keep=1",
            "spec.model.options={alpha: 0.2}",
            "spec.training.learningRate=1e-2",
        ],
    )
    assert job.spec.training.epochs == 5
    assert job.spec.parallelism.stages == "auto"
    assert job.spec.checkpoint.keep == 1
    assert job.spec.model.options == {"alpha": 0.2}
    assert job.spec.training.learning_rate == 0.01


def test_set_to_null_takes_a_field_out() -> None:
    assert load_job(QUICKSTART, ["spec.parallelism.chunks=null"]).spec.parallelism.chunks is None


def test_set_of_an_unknown_path_gets_the_same_sentence_as_in_a_file() -> None:
    assert (
        refusal(QUICKSTART, "spec.trainign.epochs=5")
        == "spec.trainign: unknown field; did you mean training?"
    )


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("epochs", "--set epochs: write it as path=value, for example spec.training.epochs=5."),
        (
            "spec..epochs=5",
            "--set spec..epochs=5: write it as path=value, for example spec.training.epochs=5.",
        ),
        ("kind.a.b=1", "--set kind.a.b=1: kind is not an object with fields."),
        ("spec.model.options=[1", "--set spec.model.options=[1: '[1' is not a valid YAML value."),
        ("spec.training.epochs=x", "spec.training.epochs: must be a whole number, got 'x'."),
    ],
)
def test_a_wrong_set_is_told_in_one_sentence(override: str, sentence: str) -> None:
    assert refusal(QUICKSTART, override) == sentence
