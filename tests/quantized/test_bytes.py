"""Predicted bytes equal the allocated arrays, part by part, and the ratios are told apart."""

from dataclasses import replace

import pytest

from jaxkv.spec import memory
from jaxkv.spec.command_memory import measure
from jaxkv.spec.compressed_bytes import compressed_parts
from jaxkv.spec.config import Rope
from jaxkv.spec.errors import Unsupported
from jaxkv.spec.tiny import CONFIGS
from jaxkv.spec.tiny_families import tiny_family
from tests.tiny import BATCH, TWINS, Cell, module

CASES = {
    "4": ("quantized", {"bits": 4, "group_size": 6, "residual_length": 12}),
    "int8": ("quantized", {"bits": 8}),
    "fp8": ("quantized", {"bits": "fp8"}),
    "sinks": ("sinks", {"sinks": 2, "window": 9}),
    "absolute": ("sinks_absolute", {"sinks": 3, "window": 100}),
}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("layout", "options"), CASES.values(), ids=CASES)
def test_predicted_bytes_are_the_allocated_ones_to_the_byte(twin, dtype, layout, options):
    """KV-80: of every layer, the ones with a window among them; scales and residual counted."""
    caches, config = module(Cell(twin, "llama", layout), "caches"), CONFIGS["llama"]
    sizes = {"batch": BATCH, "layout": layout, "slack": 3}

    cache = caches.init(config, capacity=44, dtype=dtype, **sizes, **options)

    counted = memory.model_cache_bytes(
        config, tokens=44, itemsize=memory.ITEMSIZES[dtype], options=options, **sizes
    )
    assert caches.nbytes(cache) == counted + memory.bookkeeping_bytes(BATCH)


def test_payload_and_total_are_counted_apart():
    """4 against 32 bits are 8 times less payload at most, and less in all."""
    config, options = CONFIGS["llama"], {"bits": 4, "group_size": 6, "residual_length": 12}

    parts = compressed_parts(
        config, batch=1, tokens=480, itemsize=4, layout="quantized", options=options
    )
    report = measure(
        config,
        model="llama",
        dtype="float32",
        layout="quantized",
        batch=1,
        length=480,
        options=options,
    )

    numbers = 3 * 18 * 480 * 2
    assert parts.code_bytes == numbers // 2
    assert parts.scale_bytes == 2 * numbers // 6 * 4
    assert parts.coded_bytes == numbers * 4
    assert parts.exact_bytes == 3 * 18 * 2 * 4 * (12 + 5 + 8)
    assert report.payload_ratio == "8.00"
    plain = 3 * numbers * 4
    assert report.total_ratio == f"{plain / parts.total_bytes:.2f}"
    assert report.request_bytes == parts.total_bytes


@pytest.mark.parametrize(
    ("dtype", "payload"), [("bfloat16", "8.00"), ("float32", "16.00")], ids=["16", "32"]
)
def test_two_bits_are_8_times_less_payload_than_16_and_less_than_that_in_all(dtype, payload):
    """Of 16 bits; 16 times less than 32. Scales, zero points, residual and rings come on top."""
    config, options = CONFIGS["llama"], {"bits": 2, "group_size": 12, "residual_length": 12}
    widths = {"layers": (replace(config.layers[1], attention=_of_width(config, 24)),)}

    report = measure(
        replace(config, **widths),
        model="llama",
        dtype=dtype,
        layout="quantized",
        batch=1,
        length=480,
        options=options,
    )

    itemsize, numbers = memory.ITEMSIZES[dtype], 3 * 24 * 480 * 2
    stored = numbers // 4 + 2 * numbers // 12 * itemsize + 2 * 3 * 24 * 12 * itemsize
    assert report.payload_ratio == payload
    assert report.request_bytes == stored
    assert report.total_ratio == f"{numbers * itemsize / stored:.2f}"
    assert float(report.total_ratio) < float(payload)


def _of_width(config, width):
    """Return the attention of the layer without a window, with heads of another width."""
    return replace(config.layers[1].attention, head_dim=width, rope=Rope(100.0, width))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("layout", ["quantized", "sinks", "sinks_absolute"])
def test_latents_are_refused_by_name(twin, layout):
    """They are no keys and values of heads; nothing is counted for them either."""
    caches, config = module(Cell(twin, "", ""), "caches"), tiny_family("deepseek_v3")

    with pytest.raises(Unsupported, match=f"layout '{layout}' keeps the keys and values of heads"):
        caches.init(config, batch=1, capacity=40, dtype="float32", layout=layout)
    with pytest.raises(Unsupported, match=f"layout '{layout}' keeps the keys and values of heads"):
        compressed_parts(config, batch=1, tokens=40, itemsize=4, layout=layout)
