"""Real faults in other packages and older releases: found, localized and named there.

`make test-wild` builds the environments and runs this; each model runs in its own through the
command line, as a user would.
"""

import json
import os
import subprocess
from itertools import accumulate

import pytest

from tests.wild.environments import ROOT, pins, python
from tests.wild.test_findings import shows

# factory -> environment, relation that breaks, first kind of its diagnosis, layer and position of
# the smallest case that fails; ROOM is the first token of the step that goes past the cache's end.
# A graph tells no layers.
ROOM = "room"
FAULTS = {
    "litgpt_softcap": ("litgpt", "cache.partition", "mask.none", 0, 0),
    "litgpt_ring": ("litgpt", "cache.partition", "mask.none.later", 0, 4),
    "x_transformers_shift": ("xt", "cache.partition", "state.dropped", 0, 1),
    "x_transformers_forget": ("xt", "cache.partition", "state.dropped", 0, 1),
    "gpt2_sdpa": ("tf442", "cache.partition", "mask.top_left", 0, 1),
    "gpt_neox_sdpa": ("tf442", "cache.partition", "mask.top_left", 0, 1),
    "mistral_sliding": ("tf442", "window.ring", "window.off_by_one", 0, 4),
    "gemma2_default": ("tf448", "cache.partition", "length.from_ring", 0, 6),
    "mistral_static_chunks": ("tf456", "window.ring", "window.chunk_drops_past", 0, 1),
    "quantized_llama": ("q524", "cache.fork_gather", "gather.partial", 0, 7),
    "quantized_llama_hqq": ("q524", "cache.fork_gather", "gather.partial", 0, 7),
    "keras_hub_neox": ("kh", "cache.partition", "pos.reset", 0, 1),
    "keras_hub_neox_jax": ("kh", "cache.partition", "pos.reset", 0, 1),
    "keras_hub_llama": ("kh", "cache.capacity", "capacity.clamp", 0, ROOM),
    "keras_hub_llama_jax": ("kh", "cache.capacity", "capacity.clamp", 0, ROOM),
    "onnx_top_left": ("onnx", "cache.partition", "mask.top_left", None, 1),
    "mlx_restarted": ("mlx", "cache.partition", "pos.reset", 0, 1),
    "torchtune_restarted": ("tune", "cache.partition", "pos.reset", 0, 1),
}
# factory -> environment and the relations: where others differ (a cache rounds, a release has other
# faults beside this one), only those that the fault breaks.
CLEAN = {
    "litgpt_llama": ("litgpt", "core"),
    "x_transformers_plain": ("xt", "core"),
    "gpt2_eager": ("tf442", "core"),
    "mistral_dynamic": ("tf442", "core"),
    "gemma2_wide": ("tf448", "cache.partition,cache.prefix"),
    "mistral_dynamic_later": ("tf456", "core"),
    "quantized_llama_reordered": ("q524", "cache.fork_gather"),
    "onnx_right": ("onnx", "core"),
    "mlx_llama": ("mlx", "core"),
    "mlx_window": ("mlx", "core"),
    "torchtune_llama": ("tune", "core"),
}


def report_of(name, environment, folder, relations="core"):
    """Run the command line in an environment; return the report as data."""
    out = folder / f"{name}.json"
    options = ["--dtypes", "float64", "--budget", "600s", "--json", str(out), "--save", str(folder)]
    options += ["--relations", relations]
    command = [str(python(environment)), "-m", "crosscheck", "run", f"tests.wild.elsewhere:{name}"]
    known = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    known.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [*command, *options], cwd=ROOT, env=known, capture_output=True, text=True, timeout=900
    )
    assert out.is_file(), done.stdout + done.stderr
    return json.loads(out.read_text("utf-8"))


def past_the_end(case):
    """Return the first token of the first step that a case's capacity has no room for."""
    sizes = [op["n"] for op in case["ops"]]
    starts = list(accumulate(sizes, initial=0))
    return next(at for at, n in zip(starts, sizes, strict=False) if at + n > case["capacity"])


@pytest.mark.parametrize("name", FAULTS)
def test_a_real_fault_is_found_localized_and_named(name, tmp_path):
    environment, relation, kind, layer, position = FAULTS[name]

    report = report_of(name, environment, tmp_path)

    (row,) = (r for r in report["rows"] if (r["relation"], r["axis"]) == (relation, "self"))
    assert (report["verdict"], row["verdict"]) == ("fail", "fail")
    assert row["diagnosis"][0]["fault"].startswith(kind), row["diagnosis"]
    place = row["divergence"]
    assert place["layer"] == layer
    assert place["position"] == (past_the_end(row["case"]) if position == ROOM else position)


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_right_raises_no_alarm(name, tmp_path):
    report = report_of(name, CLEAN[name][0], tmp_path, CLEAN[name][1])

    alarms = {r["relation"]: r["reason"] for r in report["rows"] if r["verdict"] == "fail"}
    assert alarms == {}
    assert any(r["verdict"] == "pass" for r in report["rows"])


@pytest.mark.parametrize(
    ("script", "environment", "backend"),
    [
        ("keras_hub_neox", "kh", "torch"),
        ("keras_hub_neox", "kh", "jax"),
        ("keras_hub_clamp", "kh", "torch"),
        ("keras_hub_clamp", "kh", "jax"),
        ("litgpt_softcap", "litgpt", ""),
        ("litgpt_ring_chunks", "litgpt", ""),
        ("x_transformers_shift", "xt", ""),
        ("x_transformers_forget", "xt", ""),
        ("x_transformers_orthog", "xt", ""),
        ("quantized_gather", "q524", ""),
        ("quantized_crop", "q524", ""),
    ],
)
def test_a_finding_shows_from_its_script_alone(script, environment, backend, tmp_path):
    file = ROOT / "tests" / "wild" / "findings" / f"{script}.py"
    known = os.environ | ({"KERAS_BACKEND": backend} if backend else {})

    done = subprocess.run(
        [str(python(environment)), str(file)],
        cwd=tmp_path,
        env=known,
        capture_output=True,
        text=True,
    )

    wrong, right = shows(done.stdout)
    assert wrong > 1e-3, done.stdout + done.stderr
    assert all(each < 1e-4 for each in right)


def test_every_environment_is_there_and_used():
    assert {e for e, *_ in (*FAULTS.values(), *CLEAN.values())} == set(pins())
    assert all(python(name).exists() for name in pins())
