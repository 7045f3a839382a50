"""Settings: each layer, which one wins, and that nothing wrong is ever swallowed."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config import MASK, fill_unset, load_settings, setting_lines
from runtime.config_names import MODELS, Setting, key_types, known_settings, parse_name, section_types
from schemas.errors import SettingsError
from schemas.settings import DEFAULT_MODEL, SECRET_SETTINGS, Settings

KNOWN = list(known_settings())


@pytest.fixture(autouse=True)
def nobody_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings file of this machine is found."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_any_layer_the_defaults_hold() -> None:
    loaded = load_settings(None, {})
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}


def test_every_setting_has_a_source() -> None:
    names = {setting.name for setting in KNOWN} | {f"models.{DEFAULT_MODEL}.{key}" for key in key_types(MODELS)}
    assert set(load_settings(None, {}).sources) == names


def test_the_last_layer_wins_and_is_named(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", "[topics]\npartitions = 2\nnamespace = 'file'\nreplication_factor = 3\n")
    env = {"HEADRACE_TOPICS__PARTITIONS": "4", "HEADRACE_TOPICS__NAMESPACE": "env"}
    loaded = load_settings(config, env, ["topics.partitions=8"])
    topics = loaded.settings.topics
    assert (topics.partitions, topics.namespace, topics.replication_factor) == (8, "env", 3)
    assert loaded.sources["topics.partitions"] == "--set topics.partitions"
    assert loaded.sources["topics.namespace"] == "environment HEADRACE_TOPICS__NAMESPACE"
    assert loaded.sources["topics.replication_factor"] == f"file {config}"
    assert loaded.sources["topics.generation"] == "default"


def test_the_file_is_looked_for_in_order(tmp_path: Path) -> None:
    def namespace(config: Path | None, env: dict[str, str]) -> str:
        return load_settings(config, env).settings.topics.namespace

    explicit = write(tmp_path / "explicit.toml", "[topics]\nnamespace = 'explicit'")
    by_env = write(tmp_path / "env.toml", "[topics]\nnamespace = 'env'")
    write(tmp_path / "xdg/headrace/headrace.toml", "[topics]\nnamespace = 'user'")
    assert namespace(None, {}) == "user"
    write(tmp_path / "cwd/headrace.toml", "[topics]\nnamespace = 'cwd'")
    assert namespace(None, {}) == "cwd"
    assert namespace(None, {"HEADRACE_CONFIG": str(by_env)}) == "env"
    assert namespace(explicit, {"HEADRACE_CONFIG": str(by_env)}) == "explicit"


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no settings file .*nowhere\.toml \(from --config\)"):
        load_settings(tmp_path / "nowhere.toml", {})
    with pytest.raises(SettingsError, match="from HEADRACE_CONFIG"):
        load_settings(None, {"HEADRACE_CONFIG": str(tmp_path / "nowhere.toml")})


@pytest.mark.parametrize("text", ["topics = [", "\x00", "a = 1\na = 2"])
def test_a_file_that_is_no_toml_is_an_error_with_its_name(tmp_path: Path, text: str) -> None:
    config = write(tmp_path / "bad.toml", text)
    with pytest.raises(SettingsError, match=r"bad\.toml is not valid TOML"):
        load_settings(config, {})


def test_a_file_that_is_no_text_is_an_error_with_its_name(tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"bad\.toml is not valid TOML"):
        load_settings(config, {})


def test_a_value_where_a_section_belongs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'topics' in file .* is not a section: write `\[topics\]`"):
        load_settings(write(tmp_path / "c.toml", "topics = 3"), {})
    with pytest.raises(SettingsError, match=r"'models\.path' in file"):
        load_settings(write(tmp_path / "c.toml", "[models]\npath = 'x'"), {})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("kafka.bootstrap_server", "did you mean kafka.bootstrap_servers?"),
        ("kafak.bootstrap_servers", "did you mean kafka.bootstrap_servers?"),
        ("kafkas.zzz", r"did you mean \[kafka\]?"),
        ("kafka.zzz", r"\[kafka\] has: bootstrap_servers, "),
        ("zzz.zzz", "the sections are: kafka, storage, "),
        (f"models.{DEFAULT_MODEL}.pth", "a model has: path, context_length"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str, advice: str) -> None:
    with pytest.raises(SettingsError, match=advice.replace("?", r"\?")) as caught:
        load_settings(None, {}, [f"{name}=x"])
    assert name in caught.value.message
    assert f"--set {name}" in caught.value.message


def test_an_unknown_name_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", "[topics]\npartition = 3\n")
    with pytest.raises(SettingsError, match=r"topics\.partition \(file .*c\.toml\); did you mean topics\.partitions\?"):
        load_settings(config, {})
    with pytest.raises(SettingsError, match=r"environment HEADRACE_TOPICS__PARTITION\); did you mean"):
        load_settings(None, {"HEADRACE_TOPICS__PARTITION": "3"})


@pytest.mark.parametrize("override", ["topics.partitions", "topics", "topics=3", "=3", "a.b.c=1", ""])
def test_a_flag_of_another_form_is_refused_with_the_right_form(override: str) -> None:
    with pytest.raises(SettingsError, match=r"write section\.key=value"):
        load_settings(None, {}, [override])


def test_a_wrong_type_names_setting_and_place(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", "[topics]\npartitions = 'six'\n")
    with pytest.raises(SettingsError, match=r"topics\.partitions \(file .*c\.toml\): Expected int, got str"):
        load_settings(config, {})
    with pytest.raises(SettingsError, match=r"\(environment HEADRACE_TOPICS__PARTITIONS\): Expected int >= 1"):
        load_settings(None, {"HEADRACE_TOPICS__PARTITIONS": "0"})
    with pytest.raises(SettingsError, match=r"logging\.level .*Invalid enum value 'loud'"):
        load_settings(None, {}, ["logging.level=loud"])


def test_text_is_read_in_the_type_of_its_setting() -> None:
    env = {
        "HEADRACE_STORAGE__SECURE": "true",
        "HEADRACE_GATE__DEFAULT_TTL_S": "2.5",
        "HEADRACE_ENGINE__NUM_THREADS": "2",
        "HEADRACE_STORAGE__ACCESS_KEY": "123",
    }
    settings = load_settings(None, env).settings
    assert (settings.storage.secure, settings.gate.default_ttl_s, settings.engine.num_threads) == (True, 2.5, 2)
    assert settings.storage.access_key == "123"


def test_an_empty_text_unsets_what_may_be_unset(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", "[kafka]\nbootstrap_servers = 'a:1'\n[engine]\nnum_threads = 2\n")
    env = {"HEADRACE_KAFKA__BOOTSTRAP_SERVERS": "", "HEADRACE_ENGINE__NUM_THREADS": ""}
    settings = load_settings(config, env).settings
    assert settings.kafka.bootstrap_servers is None
    assert settings.engine.num_threads is None
    with pytest.raises(SettingsError, match="partitions"):
        load_settings(None, {"HEADRACE_TOPICS__PARTITIONS": ""})


@given(st.sampled_from(KNOWN))
def test_every_setting_can_be_named_in_every_layer(setting: Setting) -> None:
    assert parse_name(setting.name) == setting
    _, *parts = setting.env_name.split("_", 1)
    assert tuple(parts[0].lower().split("__")) == (setting.section, setting.key)


def test_a_single_underscore_between_section_and_key_is_a_mistake_that_is_seen() -> None:
    for setting in KNOWN:
        wrong = setting.env_name.replace("__", "_")
        with pytest.raises(SettingsError, match=setting.env_name):
            load_settings(None, {wrong: "x"})


def test_other_variables_that_begin_alike_are_left_alone() -> None:
    """Kubernetes gives every container variables like these for a service named headrace-gate."""
    env = {
        "HEADRACE_GATE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_GATE_PORT": "tcp://10.0.0.1:80",
        "HEADRACE_GATE_PORT_80_TCP_ADDR": "10.0.0.1",
        "HEADRACE_DEBUG": "1",
        "HEADRACES__TOPICS__PARTITIONS": "9",
    }
    assert load_settings(None, env).settings == Settings()


def test_a_model_of_a_file_replaces_the_default_one_and_the_worker_serves_it(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", '[models."qwen2.5-0.5b"]\npath = "/q.gguf"\ncontext_length = 512\n')
    loaded = load_settings(config, {})
    assert list(loaded.settings.models) == ["qwen2.5-0.5b"]
    assert loaded.settings.worker.model == "qwen2.5-0.5b"
    assert loaded.sources["models.qwen2.5-0.5b.path"] == f"file {config}"
    assert loaded.sources["worker.model"] == "the first of [models]"


def test_the_default_model_stays_beside_others_if_it_is_named(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", f'[models.other]\npath = "/o.gguf"\n[models."{DEFAULT_MODEL}"]\n')
    loaded = load_settings(config, {})
    assert set(loaded.settings.models) == {"other", DEFAULT_MODEL}
    assert loaded.settings.models[DEFAULT_MODEL] == Settings().models[DEFAULT_MODEL]
    assert loaded.settings.worker.model == DEFAULT_MODEL


def test_a_model_is_named_in_the_environment_without_regard_to_signs_and_case(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", '[models."Qwen2.5-0.5B"]\npath = "/q.gguf"\n')
    env = {"HEADRACE_MODELS__QWEN2_5_0_5B__CONTEXT_LENGTH": "99", "HEADRACE_MODELS__TINY__PATH": "/tiny.gguf"}
    models = load_settings(config, env).settings.models
    assert models["Qwen2.5-0.5B"].context_length == 99
    assert models["tiny"].path == "/tiny.gguf"


def test_a_default_model_s_key_can_be_set_alone() -> None:
    env = {"HEADRACE_MODELS__SMOLLM2_135M_INSTRUCT__CONTEXT_LENGTH": "77"}
    for loaded in (
        load_settings(None, env),
        load_settings(None, {}, [f"models.{DEFAULT_MODEL}.context_length=77"]),
    ):
        assert loaded.settings.models[DEFAULT_MODEL].context_length == 77
        assert loaded.settings.models[DEFAULT_MODEL].path == Settings().models[DEFAULT_MODEL].path


def test_a_name_in_the_environment_that_may_mean_two_models_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", '[models.a-b]\npath = "/1"\n[models."a.b"]\npath = "/2"\n')
    with pytest.raises(SettingsError, match=r"may mean each of a-b, a\.b"):
        load_settings(config, {"HEADRACE_MODELS__A_B__PATH": "/3"})


def test_a_model_s_name_may_hold_dots_in_a_flag() -> None:
    models = load_settings(None, {}, ["models.qwen2.5-0.5b.path=/q=1.gguf"]).settings.models
    assert models["qwen2.5-0.5b"].path == "/q=1.gguf"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["models.new.context_length=5"], r"models\.new .* has no `path`"),
        (["models.a b.path=/x"], "model name 'a b' cannot be used"),
        (["models.none.path=/x"], "cannot be used"),
        (["worker.model=other"], r"worker\.model \(--set worker\.model\) is 'other', which \[models\] lacks"),
        (["topics.namespace=a b"], "namespace 'a b'"),
        (["topics.min_insync_replicas=2"], "nothing could be written"),
    ],
)
def test_settings_that_cannot_go_together_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(None, {}, overrides)


def test_what_is_unset_can_be_filled_and_what_is_set_stays() -> None:
    loaded = load_settings(None, {"HEADRACE_STORAGE__ENDPOINT": "mine:9000"})
    filled = fill_unset(loaded, {"kafka.bootstrap_servers": "local:1", "storage.endpoint": "local:2"}, "local stack")
    assert filled.settings.kafka.bootstrap_servers == "local:1"
    assert filled.settings.storage.endpoint == "mine:9000"
    assert filled.sources["kafka.bootstrap_servers"] == "local stack"
    assert filled.sources["storage.endpoint"] == "environment HEADRACE_STORAGE__ENDPOINT"
    assert loaded.settings.kafka.bootstrap_servers is None


@pytest.mark.parametrize("name", sorted(SECRET_SETTINGS))
def test_a_secret_is_shown_nowhere(name: str) -> None:
    loaded = load_settings(None, {}, [f"{name}=hunter2"])
    shown = {line.name: line.value for line in setting_lines(loaded)}
    assert shown[name] == MASK
    assert "hunter2" not in repr(loaded)
    assert "hunter2" not in str(loaded.settings)
    assert "hunter2" in msgspec.json.encode(loaded.settings).decode()


def test_a_secret_that_is_not_set_is_shown_as_unset() -> None:
    shown = {line.name: line.value for line in setting_lines(load_settings(None, {}))}
    assert {shown[name] for name in SECRET_SETTINGS} == {None}


def test_secret_settings_exist() -> None:
    assert {setting.name for setting in KNOWN} >= SECRET_SETTINGS
    assert set(section_types()) == {field.name for field in msgspec.structs.fields(Settings)}
