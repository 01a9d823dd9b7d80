"""Known models as memory arithmetic: what `jaxkv memory --examples` prints."""

from dataclasses import dataclass

from jaxkv.spec import memory

_CARD_BYTES = 80 * 10**9
_GPT2_XL_POSITIONS = 1024


@dataclass(frozen=True)
class Example:
    """One row.

    Attributes:
        case: What is counted, with its sizes.
        size_bytes: The result.
        note: What must be said beside it; '' for nothing.
    """

    case: str
    size_bytes: int
    note: str = ""


def examples() -> tuple[Example, ...]:
    """Return the rows, computed."""
    return (*_grouped(), *_gpt2_xl(), *_deepseek_v3(), *_weights())


def score_counts(n: int) -> dict[str, int]:
    """Return the scores of n tokens per layer and query head, by how they are computed."""
    return {
        "cached": memory.cached_scores(n),
        "uncached, full squares": memory.uncached_squares(n),
        "uncached, causal pairs": memory.uncached_pairs(n),
    }


def beyond(tokens: int, positions: int) -> str:
    """Return what must be said of a length that a model cannot run; '' if it can."""
    if tokens <= positions:
        return ""
    return f"beyond the model's {positions} positions: storage only"


def _grouped() -> list[Example]:
    return [
        Example(
            f"{layers} layers, 4096 tokens, 8 KV heads, head 128, 2 bytes, batch 1",
            memory.cache_bytes(
                layers=layers,
                tokens=4096,
                kv_heads=8,
                key_width=128,
                value_width=128,
                itemsize=2,
            ),
        )
        for layers in (32, 80)
    ]


def _gpt2_xl() -> list[Example]:
    return [
        Example(
            f"GPT-2 XL (48 layers, 25 heads, head 64), {tokens} tokens, 2 bytes",
            memory.cache_bytes(
                layers=48, tokens=tokens, kv_heads=25, key_width=64, value_width=64, itemsize=2
            ),
            beyond(tokens, _GPT2_XL_POSITIONS),
        )
        for tokens in (1024, 4096)
    ]


def _deepseek_v3() -> list[Example]:
    each = memory.latent_bytes(layers=1, tokens=1, latent=512, rotary=64, itemsize=2)
    all_bytes = memory.latent_bytes(layers=61, tokens=4096, latent=512, rotary=64, itemsize=2)
    expanded, narrow = (
        memory.cache_bytes(
            layers=1, tokens=1, kv_heads=128, key_width=keys, value_width=128, itemsize=2
        )
        for keys in (192, 128)
    )
    return [
        Example(
            "DeepSeek-V3 latent: 61 layers, 4096 tokens, (512 + 64), 2 bytes",
            all_bytes,
            f"{each:,} a token and layer",
        ),
        Example(
            "DeepSeek-V3 expanded, a token and layer, 128 heads, keys 192, values 128, 2 bytes",
            expanded,
            f"the latent saves {_saved(each, expanded)} against this",
        ),
        Example(
            "DeepSeek-V3 with 128-wide keys and values only, a token and layer",
            narrow,
            f"the latent saves {_saved(each, narrow)} against this",
        ),
    ]


def _saved(size_bytes: int, baseline_bytes: int) -> str:
    return memory.percent(memory.saving(size_bytes, baseline_bytes=baseline_bytes))


def _weights() -> list[Example]:
    rows: list[Example] = []
    for billions in (7, 70):
        size_bytes = memory.weight_bytes(billions * 10**9, 2)
        over = size_bytes > _CARD_BYTES
        note = f"over one card of {_CARD_BYTES:,} bytes, before any cache" if over else ""
        rows.append(Example(f"weights: {billions}e9 parameters, 2 bytes", size_bytes, note))
    return rows
