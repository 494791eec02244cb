import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from plaudit.config import Config, load, parse, read_values
from plaudit.errors import ConfigError
from plaudit.registry import Registry

JUDGES = Registry("labeler")


@JUDGES.register("classifier")
class ClassifierConfig(Config):
    type: Literal["classifier"] = "classifier"
    threshold: float = 0.5

    def build(self) -> str:
        return f"classifier at {self.threshold}"


class Plain(Config):
    patience: int = 1

    def build(self) -> None: ...


class Optimizer(Config):
    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)


class Experiment(Config):
    name: str
    steps: int = 100
    demo: bool = False
    folder: Path = Path("runs")
    optimizer: Optimizer = Optimizer()
    judge: Annotated[Any, JUDGES.field] = ClassifierConfig()


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    return path


def test_a_file_and_overrides_make_a_frozen_tree(tmp_path):
    path = write(tmp_path, "name: lift\noptimizer:\n  learning_rate: 1.0e-3\n  betas: [0.5, 0.9]\n")
    config = load(Experiment, path, ["steps=7", "optimizer.learning_rate=0.01", "judge.type=classifier"])
    assert (config.name, config.steps, config.optimizer.learning_rate) == ("lift", 7, 0.01)
    assert config.optimizer.betas == (0.5, 0.9)
    with pytest.raises(ValueError, match="frozen"):
        config.steps = 8  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("overrides", "tree"),
    [
        (["a=1", "a.b=2", "a.c=x"], {"a": {"b": 2, "c": "x"}}),
        (["a={b: 1}", "a={c: 2}", "a[d]=3"], {"a": {"b": 1, "c": 2, "d": 3}}),
        (["a=[1]", "a=[2, 3e0]"], {"a": [2, 3.0]}),
        ([r"a\.b=2026-01-01", "c=b=d", "d="], {"a.b": "2026-01-01", "c": "b=d", "d": None}),
        (["a={b: &b {x: 1}, c: *b, d: {<<: *b, x: 2}}"], {"a": {"b": {"x": 1}, "c": {"x": 1}, "d": {"x": 2}}}),
    ],
)
def test_overrides_are_keys_and_yaml_values_of_which_the_later_win(overrides, tree):
    assert read_values(None, overrides)[0] == tree


class Limits(Config):
    speed: Annotated[float, Field(gt=0)] | tuple[Annotated[float, Field(gt=0)], ...] | dict[str, float] = 1.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "key 'speed' is -1: input should be greater than 0"),
        ([1, -2], "key 'speed.1' is -2: input should be greater than 0"),
        ({"elbow": "x"}, "key 'speed.elbow' is \"x\": input should be a valid number"),
        (
            "fast",
            "key 'speed' is \"fast\": input should be a valid number or a list in brackets, like [1, 2] or an object",
        ),
    ],
)
def test_a_key_of_several_kinds_is_told_once_and_by_its_name(value, message):
    with pytest.raises(ConfigError) as refused:
        parse(Limits, {"speed": value})
    assert str(refused.value) == message


def test_the_places_that_are_known_fill_in(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBODIED_PATH", "/data/robot")
    path = write(tmp_path, "name: x\nfolder: ${oc.env:EMBODIED_PATH}/runs\n")
    assert load(Experiment, path).folder == Path("/data/robot/runs")


def test_the_command_line_may_fill_in_what_a_file_may_not(monkeypatch):
    monkeypatch.setenv("DATA", "/data/robot")
    assert load(Experiment, None, ["name=x", "folder=${oc.env:DATA}"]).folder == Path("/data/robot")


@pytest.mark.parametrize(
    ("text", "overrides", "sentences"),
    [
        ("name: x\nstpes: 3", [], ["experiment.yaml", "unknown key 'stpes'", "did you mean 'steps'?"]),
        ("name: x\noptimizer: {learning_rat: 1}", [], ["'optimizer.learning_rat'", "did you mean 'learning_rate'?"]),
        ("name: x\njudge: {type: classifier, treshold: 1}", [], ["'judge.treshold'", "did you mean 'threshold'?"]),
        ("name: x\njudge: {type: clasifier}", [], ["no labeler 'clasifier'", "did you mean 'classifier'?"]),
        ("name: x\nsteps: '3'", [], ["experiment.yaml", "key 'steps' is \"3\"", "integer"]),
        ("name: x\ndemo: 1", [], ["key 'demo' is 1", "boolean"]),
        ("name: x", ["steps=many"], ["command line", "key 'steps' is \"many\""]),
        ("steps: 3", [], ["key 'name' is missing"]),
        ("name: [", [], ["experiment.yaml", "not valid YAML"]),
        ("name: x\nname: y", [], ["experiment.yaml", "duplicate key name in line 2"]),
        ("- name", [], ["experiment.yaml", "a config is a mapping"]),
        ("name: ${oc.env:EMBODIED_PATH}", [], ["experiment.yaml", "EMBODIED_PATH"]),  # which is not set
        ("name: ${oc.env:HOME}", [], ["experiment.yaml: key 'name' has a template that a file may not have"]),
        ("name: ${oc.decode:x}", [], ["key 'name' has a template that a file may not have"]),
        ("name: ${${demo}:HOME}\ndemo: oc.env", [], ["key 'name' has a template that a file may not have"]),
        ("name: ${oc.env:${demo}}\ndemo: HOME", [], ["key 'name' has a template that a file may not have"]),
        ("name: ${demo}\ndemo: ${name}", [], ["experiment.yaml: its templates lead to each other"]),
        ("name: " + "[" * 50_000, [], ["experiment.yaml", "more than 64 levels deep"]),
        ("name: &a [*a]", [], ["experiment.yaml", "alias *a stands for something that is not complete"]),
        ("name: !!binary aGk=", [], ["a value has a type that no config has"]),
        ("name: x", ["[1,2"], ["command line: '[1,2' cannot be read"]),
        ("name: x", ["steps=[1,2"], ["command line: 'steps=[1,2' cannot be read"]),
        ("name: x", ["folder=\udcff"], ["command line", "cannot be read"]),
    ],
)
def test_a_mistake_is_answered_with_the_key_the_nearest_one_and_the_file(tmp_path, text, overrides, sentences):
    with pytest.raises(ConfigError) as caught:
        load(Experiment, write(tmp_path, text), overrides)
    for sentence in sentences:
        assert sentence in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_aliases_of_aliases_are_refused_before_they_are_built(tmp_path):
    levels = "".join(f"l{i}: &l{i} [{','.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 9))
    with pytest.raises(ConfigError, match="stands for more than 10,000 values"):
        load(Experiment, write(tmp_path, f"l0: &l0 [x,x,x]\n{levels}"))


def test_templates_of_templates_are_refused_before_they_are_filled_in(tmp_path):
    levels = "".join(f"l{i}: {f'${{l{i - 1}}}' * 9}\n" for i in range(1, 12))
    with pytest.raises(ConfigError, match="its templates lead to each other, and make too much"):
        load(Experiment, write(tmp_path, f"l0: xxx\n{levels}"))


def test_every_mistake_is_named_not_only_the_first(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(Experiment, write(tmp_path, "name: x\nstpes: 1\ndmo: true\n"))
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"name": "x", "steps": list(range(2000))}, "key 'steps' is a list of 2,000: "),
        ({"name": "x", "k" * 5000: 1}, f"unknown key '{'k' * 200}...'"),
        ({"name": "x", **{f"key_{i}": i for i in range(500)}}, "and 480 more like these"),
    ],
)
def test_a_mistake_of_any_size_is_answered_with_sentences_that_can_be_read(tree, sentence):
    with pytest.raises(ConfigError) as caught:
        parse(Experiment, tree)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_a_missing_file_is_answered_with_the_nearest_name(tmp_path):
    write(tmp_path, "name: x")
    with pytest.raises(ConfigError, match=r"experimnt.yaml: there is no such file; did you mean 'experiment.yaml'\?"):
        load(Experiment, tmp_path / "experimnt.yaml")


def test_a_section_is_of_the_class_that_its_type_names():
    config = parse(Experiment, {"name": "x", "judge": {"type": "classifier", "threshold": 0.8}})
    assert config.judge.build() == "classifier at 0.8"
    assert config.model_dump()["judge"] == {"type": "classifier", "threshold": 0.8}


def test_a_dotted_path_names_a_class_of_the_users_own():
    config: Any = parse(Experiment, {"name": "x", "judge": {"type": f"{__name__}:ClassifierConfig", "threshold": 0.9}})
    assert config.judge.build() == "classifier at 0.9"


def test_a_class_without_a_type_is_written_so_that_it_is_found_again():
    tree = {"name": "x", "judge": {"type": f"{__name__}:Plain", "patience": 3}}
    config: Any = parse(Experiment, tree)
    assert config.judge == Plain(patience=3)
    assert config.judge.type == f"{__name__}:Plain"
    assert json.loads(config.model_dump_json())["judge"] == tree["judge"]
    assert parse(Experiment, config.model_dump(mode="json")) == config


def test_a_missing_file_with_none_beside_it_is_answered_with_its_folder(tmp_path):
    with pytest.raises(ConfigError, match=rf"run.yaml: there is no such file; {tmp_path} has no YAML or JSON file"):
        load(Experiment, tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match=rf"run.yaml: there is no such file; there is no folder {tmp_path}/new eith"):
        load(Experiment, tmp_path / "new" / "run.yaml")
