"""What a step of all beams does to the cache: read from the compiled program."""

import jax.numpy as jnp

from jaxkv.beams import Goal, search
from jaxkv.branching import Form
from jaxkv.loop import Terms
from jaxkv.model import params_of
from jaxkv.programs import PROGRAMS
from tests.compiled.hlo import loop_operations
from tests.tiny import CONFIGS, make_model

BATCH, BEAMS, SLOTS, PAGE, POOL = 2, 3, 128, 16, 40


def text_of(layout: str, **options: int) -> str:
    """Return the compiled search of the tiny llama in float32."""
    form = Form(BATCH, SLOTS, "float32", (("layout", layout), *sorted(options.items())))
    count_B = jnp.full(BATCH, 5, jnp.int32)
    one = jnp.float32(1.0)
    lowered = PROGRAMS.jitted(search).lower(
        params_of(make_model("jaxkv", "llama", "float32")),
        jnp.zeros((BATCH, 16), jnp.int32),
        count_B,
        Terms(count_B, jnp.zeros_like(count_B), jnp.full(4, -1, jnp.int32), None),
        Goal(one, jnp.asarray(False), jnp.asarray(True)),
        config=CONFIGS["llama"],
        form=form,
        beams=BEAMS,
        slots=16,
        rectangular=False,
    )
    return lowered.compile().as_text()


def test_a_step_on_pages_moves_no_pool():
    """A reorder is one of the table; the loop that copies shared pages works in place."""
    text = text_of("paged", page_size=PAGE, pool_pages=POOL)
    operations = loop_operations(text)

    lines = 3 * (POOL + 1)
    for shape in (f"f32[{lines},18,{PAGE}]", f"f32[{lines},{PAGE},18]"):
        assert any(kind == "dynamic-update-slice" for kind, of in operations if of == shape)
        for kind in ("copy", "select", "concatenate", "broadcast", "transpose", "gather"):
            assert operations[kind, shape] == 0, kind
    assert "conditional(" not in text


def test_a_step_on_rows_gathers_each_buffer_once():
    """And copies it once more: a loop's buffer cannot be gathered from and into."""
    text = text_of("contiguous")
    operations = loop_operations(text)

    for axes in (f"18,{SLOTS}", f"{SLOTS},18"):
        flat = f"f32[{BATCH * BEAMS * 3},{axes}]"
        # One a layer; XLA's optimizer, which deep runs have, writes an axis of 1 into the shape.
        forms = (f"f32[{BATCH * BEAMS},3,{axes}]", f"f32[{BATCH * BEAMS},1,3,{axes}]")
        assert sum(operations["gather", form] for form in forms) == 3
        assert operations["copy", flat] <= 3
        for kind in ("select", "concatenate", "broadcast", "transpose"):
            assert operations[kind, flat] == 0, kind
    assert "conditional(" not in text
