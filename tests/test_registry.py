import pickle
import sys
from importlib import import_module, reload
from pathlib import Path
from typing import Any, Literal

import pytest

from plaudit.config import Config
from plaudit.errors import ConfigError, ContractError, UnknownName
from plaudit.protocols import Robot
from plaudit.registry import LEARNER_REGISTRY, POLICY_REGISTRY, Registry
from plugins import install


class LampConfig(Config):
    watts: int = 40

    def build(self) -> str:
        return f"a lamp of {self.watts} W"


class Bulb(Config):
    watts: int = 40


class Lamp:
    """A class as its author wrote it, without a config."""

    def __init__(self, bulb: Bulb, *, height: float, colors: tuple[str, ...] = ("white",)):
        self.bulb, self.height, self.colors = bulb, height, colors


class Lantern(Lamp):
    """One that nobody registers."""


class Dimmer:
    """A class that takes its whole config."""

    def __init__(self, config: Bulb, action_dim: int):
        self.watts, self.action_dim = config.watts, action_dim


def lamps(cls: type = Lamp, **options: Any) -> Registry:
    registry = Registry("lamp", **options)
    registry.register("mine")(cls)
    return registry


def test_a_registered_class_is_configured_by_the_arguments_of_its_init():
    config: Any = lamps().parse({"type": "mine", "bulb": {"watts": 60}, "height": 1.5})
    assert config.type == "mine"
    lamp = config.build()
    assert (type(lamp), lamp.bulb, lamp.height, lamp.colors) == (Lamp, Bulb(watts=60), 1.5, ("white",))


def test_its_config_is_as_strict_as_any():
    with pytest.raises(ConfigError, match="unknown key 'heigth'; did you mean 'height'"):
        lamps().parse({"type": "mine", "bulb": {}, "heigth": 1.5})
    with pytest.raises(ConfigError, match="key 'height' is missing"):
        lamps().parse({"type": "mine", "bulb": {}})


def test_a_class_that_takes_a_config_gets_it_and_what_the_builder_knows():
    config: Any = lamps(Dimmer, context=("action_dim",)).parse({"type": "mine", "watts": 5})
    built = config.build(7)
    assert (built.watts, built.action_dim) == (5, 7)


def test_a_class_is_found_by_its_dotted_path_and_written_with_it():
    registry, tree = Registry("lamp"), {"type": f"{__name__}:Lantern", "bulb": {"watts": 1}, "height": 2.0}
    config: Any = registry.parse(tree)
    assert config.type == f"{__name__}:Lantern" and isinstance(config.build(), Lantern)
    assert registry.dump(config) == {**tree, "colors": ["white"]}
    assert registry.parse(registry.dump(config)) == config


def test_the_config_of_a_class_crosses_to_another_process():
    config: Any = lamps().parse({"type": "mine", "bulb": {"watts": 60}, "height": 1.5})
    assert pickle.loads(pickle.dumps(config)) == config


def test_one_class_may_have_several_names():
    registry = Registry("lamp")
    registry.register("lamp", "light")(LampConfig)
    assert registry.get("lamp") is registry.get("light") is LampConfig
    assert registry.names() == ["lamp", "light"]


class Silent(Config):
    pass


class Impatient(Config):
    def build(self, spaces: Any) -> None: ...


class Elsewhere(Config):
    type: Literal["elsewhere"] = "elsewhere"

    def build(self) -> None: ...


class Untyped:
    def __init__(self, height): ...


class Open:
    def __init__(self, **options: int): ...


class Unwritable:
    def __init__(self, policy: Lamp): ...


class Twofold:
    def __init__(self, config: Bulb, height: float): ...


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Silent, r"it has no build\(\); add 'def build\(self\)'"),
        (Impatient, r"its build\(\) is called as build\(self\)"),
        (Elsewhere, "is registered as 'mine', and its field 'type' allows only 'elsewhere'"),
        (Untyped, "argument 'height' of Untyped.__init__ has no type; write one"),
        (Open, "argument 'options' of Open.__init__ has no name or no end"),
        (Unwritable, r"Unwritable.__init__ takes \(policy: Lamp\), of which a config file cannot give all"),
        (Twofold, "takes a config and 'height', which no config file could set; make it a field of Bulb"),
    ],
)
def test_a_class_that_cannot_work_is_refused_where_it_registers(cls, message):
    registry = Registry("lamp", context=())
    with pytest.raises(ContractError, match=message):
        registry.register("mine")(cls)
    assert registry.names() == []


def test_a_class_that_lacks_methods_of_its_protocol_is_refused_with_their_names():
    with pytest.raises(ContractError, match=r"Lamp cannot be a robot: it lacks reset\(\), act\(\), observe\(\)"):
        Registry("robot", protocol=Robot, context=()).register("lamp")(Lamp)
    with pytest.raises(ContractError, match=r"it lacks predict\(\)"):
        POLICY_REGISTRY.register("lamp")(Lamp)
    with pytest.raises(ContractError, match=r"called as build\(self, env_spec, seed, device\)"):
        LEARNER_REGISTRY.register("lamp")(LampConfig)


def test_a_path_to_a_class_that_cannot_work_is_refused_with_the_reason():
    with pytest.raises(UnknownName, match="robot 'collections:Counter' cannot be used: argument 'iterable'"):
        Registry("robot").get("collections:Counter")
    with pytest.raises(UnknownName, match="names math:pi, which is not a class"):
        Registry("robot").get("math:pi")


def test_a_dotted_path_that_leads_nowhere_is_named():
    with pytest.raises(UnknownName, match=r"could not be loaded from nowhere.at:All"):
        Registry("robot").get("nowhere.at:All")


def test_one_name_is_one_thing():
    registry = Registry("robot")
    registry.register("lamp")(LampConfig)
    with pytest.raises(UnknownName, match="registered twice"):
        registry.register("lamp")(Lamp)


def plugin(monkeypatch, tmp_path: Path, module: str, field: str) -> Any:
    """The config class `Mine` of a module of somebody else."""
    (tmp_path / f"{module}.py").write_text(
        f"from plaudit.config import Config\nclass Mine(Config):\n    {field}\n    def build(self): return self\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return import_module(module).Mine


def test_two_plugins_of_one_name_are_refused_even_where_their_classes_share_one_too(monkeypatch, tmp_path):
    first, second = (plugin(monkeypatch, tmp_path, name, "speed: int = 1") for name in ("plugin_one", "plugin_two"))
    registry = Registry("robot")
    registry.register("arm")(first)
    with pytest.raises(UnknownName, match="'arm' is registered twice: plugin_one:Mine and plugin_two:Mine; rename one"):
        registry.register("arm")(second)
    assert registry.get("arm") is first


def test_a_module_that_is_imported_again_may_register_again(monkeypatch, tmp_path):
    first = plugin(monkeypatch, tmp_path, "plugin_again", "speed: int = 1")
    registry = Registry("robot")
    registry.register("arm")(first)
    again = reload(sys.modules["plugin_again"]).Mine
    assert again is not first
    registry.register("arm")(again)
    assert registry.get("arm") is again


@pytest.mark.parametrize("builtin", [{}, {"arm": "plugin_ours:Mine"}])
def test_two_installed_packages_of_one_name_are_refused_and_reached_by_their_paths(monkeypatch, tmp_path, builtin):
    modules = ("plugin_ours", "plugin_theirs")
    ours, theirs = (plugin(monkeypatch, tmp_path, module, "type: str = 'arm'") for module in modules)
    for module in modules[len(builtin) :]:
        install(monkeypatch, tmp_path / "installed", module, f"[plaudit.robot]\narm = {module}:Mine")
    registry = Registry("robot", builtin)
    with pytest.raises(UnknownName, match="'arm' is registered twice: plugin_ours:Mine and plugin_theirs:Mine"):
        registry.get("arm")
    for cls in (ours, theirs):
        config = registry.parse({"type": f"{cls.__module__}:Mine"})
        assert type(config) is cls and registry.dump(config)["type"] == f"{cls.__module__}:Mine"


def test_a_built_in_name_is_not_taken_over(monkeypatch, tmp_path):
    plugin(monkeypatch, tmp_path, "plugin_built_in", "speed: int = 1")
    registry = Registry("robot", {"arm": "plugin_built_in:Mine"})
    with pytest.raises(UnknownName, match=f"'arm' is registered twice: plugin_built_in:Mine and {__name__}:LampConfig"):
        registry.register("arm")(LampConfig)


def test_an_unknown_name_of_any_length_is_answered_with_a_sentence_that_can_be_read():
    with pytest.raises(UnknownName, match=r"there is no robot 'x{200}\.\.\.'") as caught:
        Registry("robot").get("x" * 100_000)
    assert len(str(caught.value)) < 500
