"""Generation of encoder-decoders: the encoder runs once a request, its texts come row by row."""

import importlib
import json
import re

import numpy as np
import pytest

from crosscheck import assert_agree, semantic
from jaxkv.spec.errors import CapacityError, RequestError, ShapeError
from tests.encoder.test_cross_cache import CELLS, IDS, cells, ints, source_of, subject_of

TEXTS = [
    [5, 6, 7, 8, 9],
    [11, 12],
    [13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29],
]


def generate_of(cell):
    return importlib.import_module(f"{cell.twin}.generation").generate


def stream_of(cell):
    return importlib.import_module(f"{cell.twin}.streaming").stream


@cells
def test_ragged_texts_give_each_row_what_it_gets_alone(cell):
    generate, model = generate_of(cell), subject_of(cell).model

    together = generate(model, encoder=TEXTS, max_new_tokens=6)

    alone = [generate(model, encoder=[text], max_new_tokens=6).tokens[0] for text in TEXTS]
    assert together.tokens == alone
    starts = model.config.encoder.start_ids
    assert [tuple(row[: len(starts)]) for row in together.tokens] == [starts] * 3


@pytest.mark.parametrize(
    "how", [{"layout": "paged", "page_size": 4}, {"layout": "window"}, {"cached": False}], ids=str
)
@cells
def test_every_way_of_decoding_gives_the_same_ids(cell, how):
    generate, model = generate_of(cell), subject_of(cell).model

    right = generate(model, encoder=TEXTS, max_new_tokens=6)

    assert generate(model, encoder=TEXTS, max_new_tokens=6, **how).tokens == right.tokens


@cells
def test_streamed_and_continued_ids_are_those_of_one_call(cell):
    generate, model = generate_of(cell), subject_of(cell).model
    right = generate(model, encoder=TEXTS, max_new_tokens=6)

    pieces = list(stream_of(cell)(model, encoder=TEXTS, max_new_tokens=6, steps=2))
    begun = generate(model, encoder=TEXTS, max_new_tokens=3, keep_cache=True, capacity=16)
    last = [[row[-1]] for row in begun.new_tokens]
    rest = generate(model, last, max_new_tokens=3, cache=begun.cache, consume=True)

    streamed = [[id_ for piece in pieces for id_ in piece[b]] for b in range(3)]
    assert streamed == right.new_tokens
    continued = [a + b for a, b in zip(begun.new_tokens, rest.new_tokens, strict=True)]
    assert continued == right.new_tokens


@cells
def test_an_array_with_a_mask_is_as_good_as_lists(cell):
    generate, model = generate_of(cell), subject_of(cell).model
    ids_BE, mask_BE = np.zeros((3, 20), int), np.zeros((3, 20), bool)
    for b, text in enumerate(TEXTS):
        ids_BE[b, 20 - len(text) :], mask_BE[b, 20 - len(text) :] = text, True

    left = generate(model, encoder=ids_BE, encoder_mask_BE=mask_BE, max_new_tokens=4)

    assert left.tokens == generate(model, encoder=TEXTS, max_new_tokens=4).tokens


@cells
def test_a_score_is_the_loss_of_whole_texts(cell):
    score = importlib.import_module(f"{cell.twin}.scoring").score
    subject = subject_of(cell)
    encoder = np.array([TEXTS[0]])

    found = score(subject.model, [IDS[0].tolist()], encoder=[TEXTS[0]])

    logits = subject.full(IDS[:1], encoder=encoder)[0, :-1]
    nats = np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(8), IDS[0, 1:]]
    assert found.predictions == 8
    loss, right = (np.full((1, 1, 1), x) for x in (found.loss, nats.mean()))
    assert_agree(loss, right, semantic(rtol=1e-10), name="loss")


def test_the_encoder_is_called_once_a_request(monkeypatch):
    loop = importlib.import_module("torchkv.loop")
    cell, calls = CELLS[2], []
    encode = loop.encode
    monkeypatch.setattr(loop, "encode", lambda *a, **k: calls.append(1) or encode(*a, **k))

    for how in ({}, {"cached": False}):
        generate_of(cell)(subject_of(cell).model, encoder=TEXTS, max_new_tokens=5, **how)

    assert calls == [1, 1]


def test_the_compiled_loop_holds_no_weight_of_the_encoder():
    """Nor the projection of its result: both are computed before the loop, in the same program."""
    import jax

    from jaxkv.loop import Terms, run
    from jaxkv.model import params_of

    cell = CELLS[1]
    model = subject_of(cell).model
    sources = ints(cell, [TEXTS[0]]), ints(cell, [5])
    terms = Terms(ints(cell, [4]), ints(cell, [0]), ints(cell, [-1] * 4), None)
    cache = importlib.import_module("jaxkv.caches").init(
        model.config, batch=1, capacity=8, dtype="float64", source_capacity=5
    )
    options = {"reach": 8, "fresh": True, "rectangular": True, "clean": True, "logprobs": False}

    traced = jax.make_jaxpr(lambda *a: run(*a, config=model.config, **options))(
        params_of(model), ints(cell, [[2]]), ints(cell, [1]), terms, cache, sources
    )

    encoder_width = model.config.encoder.layers[0].mlp.width
    width = model.config.width
    loops = [eqn for eqn in traced.eqns if eqn.primitive.name == "while"]
    shapes = [tuple(var.aval.shape) for eqn in loops for var in eqn.invars]
    every = [tuple(var.aval.shape) for var in traced.jaxpr.invars]
    foreign = {(width, encoder_width), (width, 2 * width)}
    assert len(loops) == 1
    assert foreign <= {*every}
    assert not foreign & {*shapes}


@cells
def test_what_a_request_lacks_or_has_too_much_is_told(cell):
    generate, model = generate_of(cell), subject_of(cell).model
    family, limit = model.config.family, model.config.encoder.max_positions

    def refusal(kind, *args, **options):
        with pytest.raises(kind) as error:
            generate(model, *args, max_new_tokens=2, **options)
        return str(error.value)

    assert refusal(RequestError, [[3]]) == (
        f"plan: encoder is None, expected the ids of a text for each row: family {family!r} "
        "attends to what its encoder has read. Give encoder=[ids, ...]."
    )
    assert "encoder is empty" in refusal(RequestError, encoder=[])
    assert refusal(ShapeError, [[3]], encoder=TEXTS) == (
        "plan: 1 prompts for 3 texts of encoder. Give one prompt a text."
    )
    assert refusal(RequestError, encoder=[[3, 97]]).startswith(
        "plan: encoder[0][1] is 97, expected 0 to 96 (the model's vocabulary)."
    )
    assert "encoder[1] is [], expected at least 1 token id" in refusal(
        RequestError, encoder=[[3], []]
    )
    assert f"expected at most {limit}" in refusal(CapacityError, encoder=[[3] * (limit + 1)])
    assert "encoder[0] has 0 axes" in refusal(ShapeError, encoder=[3, 4])
    mask = np.array([[True, False, True]])
    assert "has a gap after token 0" in refusal(
        RequestError, encoder=[[3, 4, 5]], encoder_mask_BE=mask
    )
    cache = generate(model, encoder=[[3]], max_new_tokens=1, keep_cache=True, capacity=9).cache
    assert "encoder is given beside a cache" in refusal(
        RequestError, [[3]], encoder=[[3]], cache=cache
    )
    assert "prompts is None" in refusal(RequestError, cache=cache)


@pytest.mark.parametrize("cell", [CELLS[0], CELLS[2]], ids=str)
def test_a_decoder_alone_takes_no_encoder_text(cell):
    from tests.tiny import make_model

    with pytest.raises(RequestError) as error:
        generate_of(cell)(make_model(cell.twin, "llama"), encoder=TEXTS, max_new_tokens=1)

    assert str(error.value) == (
        "plan: encoder is given, expected none: family 'llama' has no encoder. Give the text as "
        "prompts."
    )


@cells
def test_a_forward_needs_the_encoders_result(cell):
    module = importlib.import_module(f"{cell.twin}.model")
    model = subject_of(cell).model
    given = module.params_of(model), ints(cell, IDS), None, ints(cell, [9] * 4)

    with pytest.raises(RequestError, match="neither a cache nor a source is given, expected one"):
        module.forward(*given, config=model.config)
    source = source_of(cell, np.array([TEXTS[0]] * 4))
    logits, _ = module.forward(*given, config=model.config, source=source)

    right = subject_of(cell).full(IDS, encoder=np.array([TEXTS[0]] * 4))
    assert_agree(np.asarray(logits), right, semantic(rtol=1e-10), name="logits")


@pytest.mark.parametrize("cell", [CELLS[1], CELLS[2]], ids=str)
def test_the_command_line_reads_the_prompt_with_the_encoder(cell, tmp_path, capsys):
    from jaxkv.spec.huggingface_save import write_huggingface
    from jaxkv.spec.random_weights import random_arrays

    main = importlib.import_module(f"{cell.twin}.cli").main
    config = subject_of(cell).model.config
    arrays = {k: x.astype("float32") for k, x in random_arrays(config, 7).items()}
    path = tmp_path / "model"
    write_huggingface(path, config, arrays, end_ids=(1,))
    text, read = tmp_path / "text", tmp_path / "read"
    text.write_text("3 4 5")
    read.write_text("5 6 7")

    def out(*argv):
        assert main([argv[0], str(path), *argv[1:]]) == 0
        return capsys.readouterr().out

    asked = ("generate", "--prompt", "5 6 7 8 9", "--max-new-tokens", "4")
    ids = json.loads(out(*asked, "--json"))["ids"]
    assert (
        ids
        == generate_of(cell)(
            subject_of(cell).model, encoder=[TEXTS[0]], max_new_tokens=4, end_ids=1
        ).new_tokens[0]
    )
    assert " ".join(map(str, ids)) in re.sub(r"\s+", " ", out(*asked))
    scored = json.loads(
        out("score", "--text-file", str(text), "--encoder-file", str(read), "--json")
    )
    assert scored["predictions"] == 3
    info = json.loads(out("info", "--json"))
    assert (info["encoder_layers"], info["start_ids"]) == (
        config.encoder.num_layers,
        list(config.encoder.start_ids),
    )
    small, large = (
        json.loads(out("memory", "--length", "8", "--source-length", n, "--json")) for n in "12"
    )
    a = config.layers[0].cross
    one_token = 2 * config.num_layers * a.num_kv_heads * a.head_dim * 4
    assert large["request_bytes"] - small["request_bytes"] == one_token
    assert main(["score", str(path), "--text-file", str(text)]) == 2
    assert "score: --encoder-file is None, expected what its encoder reads." in (
        capsys.readouterr().err
    )
