"""Settings: from the environment, changed for a while, and per thread."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from tessera.config import Config, ConfigError, Settings, from_environment


@pytest.fixture
def settings() -> Settings:
    return Settings(from_environment({"HOME": "/home/u", "TESSERA_THREADS": "3"}))


def test_defaults() -> None:
    found = from_environment({"XDG_CACHE_HOME": "/cache"})
    assert (found.verify, found.dump, found.cpu_level) == (False, "", None)
    assert found.cache_dir == "/cache/tessera"
    assert found.threads >= 1


def test_environment() -> None:
    found = from_environment(
        {
            "TESSERA_VERIFY": "1",
            "TESSERA_DUMP": "graph, tile",
            "TESSERA_DUMP_DIR": "d",
            "TESSERA_CPU_LEVEL": "x86-64-v3",
            "TESSERA_CACHE_DIR": "",
            "TESSERA_THREADS": "2",
        }
    )
    assert found == Config(True, "graph,tile", "d", "x86-64-v3", "", 2)
    assert [found.dumps(name) for name in ("graph", "tile", "target")] == [True, True, False]
    assert from_environment({"TESSERA_DUMP": "all"}).dumps("target")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VERIFY", "maybe"),
        ("THREADS", "0"),
        ("THREADS", "many"),
        ("CUDA_DEBUG", "perhaps"),
        ("CUDA_TIMEOUT", "-1"),
        ("CUDA_GRAPHS", "all"),
        ("NVTX", "2"),
    ],
)
def test_bad_variables(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"TESSERA_{name} is '{value}'"):
        from_environment({f"TESSERA_{name}": value})


def test_the_precision_of_products(settings: Settings) -> None:
    assert settings.matmul_precision == "float32"
    before = settings.key()
    with settings.update(matmul_precision="tf32"):
        assert settings.key() != before
    with pytest.raises(ConfigError, match="rank_promotion is 'never'"):
        settings.update(rank_promotion="never").__enter__()
    with pytest.raises(ConfigError, match="matmul_precision is 'double'"):
        from_environment({"TESSERA_MATMUL_PRECISION": "double"})


def test_settings_of_gpus(settings: Settings) -> None:
    assert not settings.cuda_debug
    assert not settings.nvtx
    assert settings.cuda_graphs == 0
    found = Settings(
        from_environment(
            {
                "TESSERA_CUDA_DEBUG": "on",
                "TESSERA_CUDA_TIMEOUT": "2.5",
                "TESSERA_CUDA_GRAPHS": "20",
                "TESSERA_NVTX": "1",
            }
        )
    )
    assert (found.cuda_debug, found.nvtx) == (True, True)
    assert (found.cuda_timeout, found.cuda_graphs) == (2.5, 20)
    for name in ("cuda_timeout", "cuda_graphs"):
        with pytest.raises(ConfigError, match=name), settings.update(**{name: -1}):
            pass


def test_update_holds_for_a_while(settings: Settings) -> None:
    before = settings.current()
    with settings.update(verify=True, threads=1) as inner:
        assert settings.current() is inner
        assert (settings.verify, settings.threads) == (True, 1)
        with settings.update(dump="tile"):
            assert settings.verify
            assert settings.dumps("tile")
    assert settings.current() is before
    with pytest.raises(KeyError), settings.update(verify=True):
        raise KeyError
    assert settings.current() is before


def test_snapshots_do_not_change(settings: Settings) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.current().verify = True  # pyright: ignore[reportAttributeAccessIssue]


def test_other_threads_keep_their_settings(settings: Settings) -> None:
    seen: list[bool] = []

    def work(snapshot: Config) -> None:
        seen.append(settings.verify)
        with settings.using(snapshot):
            seen.append(settings.verify)

    with settings.update(verify=True) as snapshot:
        thread = threading.Thread(target=work, args=(snapshot,))
        thread.start()
        thread.join()
    assert seen == [False, True]


def test_the_key_has_what_code_depends_on(settings: Settings) -> None:
    key = settings.key()
    with settings.update(verify=True, dump="all", cache_dir="x"):
        assert settings.key() == key
    with settings.update(cpu_level="x86-64-v2"):
        assert settings.key() != key
    with settings.update(threads=1):
        assert settings.key() != key


def test_mistakes(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="there is no setting 'verfy'"), settings.update(verfy=1):
        pass
    with (
        pytest.raises(ConfigError, match="threads is 0, but must be at least 1"),
        settings.update(threads=0),
    ):
        pass
