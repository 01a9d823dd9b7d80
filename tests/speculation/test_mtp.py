"""DeepSeek-V3's own module as a draft: what it says is transformers', and drafts change no text."""

import importlib
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from crosscheck import assert_agree, semantic
from jaxkv.spec.errors import ConfigError, RequestError
from jaxkv.spec.huggingface import read_huggingface
from jaxkv.spec.huggingface_save import write_huggingface
from jaxkv.spec.source import open_source
from tests.parity.peers import in_float64
from tests.speculation.mtp import (
    BUDGETS,
    CONFIG,
    PROMPTS,
    Module,
    arrays,
    generate,
    model,
    speculate,
)
from tests.tiny import DEEP, TWINS

IDS = np.random.default_rng(4).integers(0, CONFIG.vocab_size, 12).tolist()
AHEAD = 3
twins = pytest.mark.parametrize("twin", TWINS)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a written checkpoint with the module's tensors in it."""
    path = tmp_path_factory.mktemp("deepseek") / "model"
    write_huggingface(path, CONFIG, arrays(1.0))
    return path


@pytest.fixture(scope="module")
def theirs(directory):
    """Return the logits of transformers' module behind each place of a text, and AHEAD more."""
    from transformers import DeepseekV3ForCausalLM
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    with torch.no_grad(), in_float64():
        eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
        main = DeepseekV3ForCausalLM.from_pretrained(directory, dtype=torch.float64, **eager)
        # The class names the further layer of the one published size, which is how it is found.
        main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{CONFIG.num_layers}.*"]
        module = MtpModel.from_pretrained(main).eval().double()
        ids = torch.tensor([IDS])
        heard = main(ids[:, :-1], output_hidden_states=True).hidden_states[-1]
        kept, place = MtpCache(config=main.config.get_mtp_config()), torch.arange(1, len(IDS))
        out = module.forward_layer(0, heard, place[None], kept, input_ids=ids[:, 1:])
        logits = [module._project_to_logits(out)[0]]
        for at in range(len(IDS), len(IDS) + AHEAD):
            last, place = logits[-1][-1:].argmax(-1)[None], torch.tensor([[at]])
            out = module.forward_layer(0, out[:, -1:], place, kept, input_ids=last)
            logits.append(module._project_to_logits(out)[0])
    return torch.cat(logits).numpy()


@twins
def test_what_the_module_says_equals_transformers_own(twin, directory, theirs):
    """In float64, at every place of a text, in two steps, and of its own results after it."""
    checkpoint = read_huggingface(directory, mtp=True)
    from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
    module = Module(twin, from_arrays(checkpoint.config, checkpoint.weights, dtype="float64"))
    heard, kept = module.heard(IDS[:-1]), module.cache(len(IDS) + AHEAD)

    first, _, kept = module.read(heard[:, :7], IDS[1:8], kept)
    second, out, kept = module.read(heard[:, 7:], IDS[8:], kept)
    logits = [first, second]
    for _ in range(AHEAD):
        said, out, kept = module.read(out[:, -1:], [int(logits[-1][-1].argmax())], kept)
        logits.append(said)

    assert checkpoint.config == CONFIG
    assert_agree(np.concatenate(logits), theirs, semantic(), name="logits", names=(twin, "hf"))


@twins
def test_weights_are_given_back_under_their_names(twin):
    back = importlib.import_module(f"{twin}.weights").to_arrays(model(twin, "wrong"))

    assert {name: x.tobytes() for name, x in back.items()} == {
        name: x.tobytes() for name, x in arrays(1.0).items()
    }


CASES = [("right", 3, "contiguous"), ("mixed", 3, "contiguous"), ("mixed", 1, "paged")]
CASES += [("wrong", 2, "contiguous"), ("mixed", 6, "paged"), ("right", 1, "contiguous")]


@twins
@pytest.mark.parametrize(("drafts", "k", "layout"), CASES if DEEP else CASES[:3])
def test_ids_and_counts_are_those_of_rounds_by_hand(twin, drafts, k, layout):
    """Each round's drafts are the module's on the whole text: nothing taken back is left over."""
    paged = {"layout": layout, "page_size": 4 if layout == "paged" else None}
    whole = greedy(twin, drafts)

    found = speculate(twin, drafts=drafts, k=k, **paged)

    assert found.new_tokens == whole
    told = zip(found.drafted_B, found.accepted_B, found.steps_B, strict=True)
    by_hand = [rounds(module(drafts), *text, k) for text in zip(PROMPTS, whole, strict=True)]
    assert [tuple(map(int, row)) for row in told] == by_hand
    assert (found.rolled_back_B == found.drafted_B - found.accepted_B).all()
    share = found.accepted_B.sum() / found.drafted_B.sum()
    assert {"right": share == 1, "mixed": 0.1 < share < 0.9, "wrong": share < 0.5}[drafts]


@cache
def module(drafts):
    """Return the one that compiles nothing: texts of any length, the weights of both twins."""
    return Module("torchkv", model("torchkv", drafts))


@cache
def greedy(twin, drafts):
    return generate(twin, drafts=drafts).new_tokens


def rounds(own, prompt, new, k):
    """Return drafted, accepted and steps of a greedy row, from its ids, as one would explain it."""
    at, drafted, accepted, steps = 1, 0, 0, 0
    while at < len(new):
        want, kept = min(k, len(new) - at - 1), 0
        known = own.drafts(prompt + new[:at], want) if want else []
        while kept < want and known[kept] == new[at + kept]:
            kept += 1
        at, steps = at + kept + 1, steps + 1
        drafted, accepted = drafted + want, accepted + kept
    return drafted, accepted, steps


@twins
def test_drafts_are_drawn_from_what_they_are_judged_by(twin):
    """A module that says what the model says keeps all drafts, after any filter."""
    drawn = {"temperature": [1.3, 0.0, 0.8], "top_k": 6, "top_p": 0.9, "seeds": [1, 2, 3]}

    found = speculate(twin, drafts="right", **drawn)

    assert found.accepted_B.tolist() == found.drafted_B.tolist()
    assert found.new_tokens[0] != greedy(twin, "right")[0]
    assert found.new_tokens[1] == greedy(twin, "right")[1]


@twins
def test_a_row_drafts_beside_others_what_it_drafts_beside_none_of_them(twin):
    drawn = {"temperature": 1.1, "top_k": 97, "top_p": 1.0}
    found = speculate(twin, seeds=[4, 5, 6], **drawn)

    order = [1, 0, 1]
    other = speculate(
        twin,
        [PROMPTS[b] for b in order],
        max_new_tokens=[BUDGETS[b] for b in order],
        seeds=[5, 4, 7],
        **drawn,
    )

    assert other.new_tokens[:2] == [found.new_tokens[1], found.new_tokens[0]]
    assert other.accepted_B[:2].tolist() == [found.accepted_B[1], found.accepted_B[0]]
    assert 0 < found.accepted_B.sum() < found.drafted_B.sum()


@twins
def test_end_tokens_and_budgets_inside_a_block_are_kept(twin):
    whole = greedy(twin, "right")
    end = whole[0][3]

    found = speculate(twin, drafts="right", end_ids=end, max_new_tokens=[14, 1, 0])

    assert found.new_tokens == [whole[0][: whole[0].index(end) + 1], whole[1][:1], []]
    assert found.forwarded_positions_B[2] == 0


@twins
def test_what_cannot_draft_is_refused(twin):
    bare = importlib.import_module(f"{twin}.weights").from_arrays(
        replace(CONFIG, has_mtp=False),
        {name: x for name, x in arrays(1.0).items() if not name.startswith("mtp.")},
        dtype="float64",
    )
    call = importlib.import_module(f"{twin}.speculative").speculate
    kept = generate(twin, keep_cache=True, capacity=64).cache

    told = []
    for asked in ({"draft": "mpt"}, {}, {"cache": kept}):
        decoder = bare if not asked else model(twin)
        with pytest.raises(RequestError) as error:
            call(decoder, PROMPTS, k=2, max_new_tokens=4, **{"draft": "mtp", **asked})
        told.append(str(error.value))

    assert told == [
        "speculate: draft is 'mpt', expected a Decoder, PromptLookup or 'mtp'.",
        "speculate: draft is 'mtp', but the model holds no module that predicts further tokens. "
        "Open its checkpoint with open_source(..., mtp=True), or take another draft.",
        "speculate: cache is given, expected None beside draft='mtp': the module lacks what this "
        "one holds. Pass the whole texts, or draft=PromptLookup().",
    ]


def test_a_checkpoint_without_the_module_is_refused(tmp_path):
    none = replace(CONFIG, draft_layers=0, has_mtp=False)
    kept = {name: x for name, x in arrays(1.0).items() if not name.startswith("mtp.")}
    write_huggingface(tmp_path / "m", none, kept)

    with pytest.raises(ConfigError, match="mtp is asked for, and there are 0 layers that predict"):
        open_source(tmp_path / "m", mtp=True)
    with pytest.raises(ConfigError, match="'kjv' holds no layer that predicts further tokens"):
        open_source("kjv", mtp=True)
    with pytest.raises(ConfigError, match="has_mtp is True, draft_layers 2, expected 1"):
        replace(CONFIG, draft_layers=2)


@twins
def test_the_command_reads_the_module_and_changes_no_id(twin, directory, capsys):
    main = importlib.import_module(f"{twin}.cli").main
    asked = ("generate", str(directory), "--prompt", "3 1 4", "--max-new-tokens", "5", "--json")

    assert main([*asked, "--draft", "mtp", "--k", "2"]) == 0
    drafted = json.loads(capsys.readouterr().out)
    assert main([*asked]) == 0

    assert drafted["ids"] == json.loads(capsys.readouterr().out)["ids"]
    assert drafted["drafted"] > 0
