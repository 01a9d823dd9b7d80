"""DeepSeek-V3's module that predicts one token further, as a draft for the model that it is of.

At place i it reads the model's normed stream h_i beside the embedding of the token after it,

    x_i = M [norm(embed(t_{i + 1})); norm(h_i)],

runs one layer over them, and its own normed result goes through the model's head: the token at
i + 2. Further ones come from the same module: its result stands for the stream that the model has
not made yet. Letters: B rows, T tokens, K drafted tokens, D width, V vocabulary.

Source: DeepSeek-V3 (arXiv:2412.19437), section 2.2; that h is normed, and the order of the two
halves: transformers 5.24, `modeling_layers.MtpLayer` and `candidate_generator`.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array
from torch import nn

from jaxkv.spec.config import ModelConfig
from torchkv import caches
from torchkv.block import Dropout
from torchkv.caches import Cache
from torchkv.drafts import Drafts, draw_drafts
from torchkv.linear import linear, norm
from torchkv.loop import Terms, Text
from torchkv.model import Layer, Linear, Norm, Params, project
from torchkv.stack import no_tap, run_layers


class Mtp(nn.Module):
    """The module's parameters: norms, a product of two streams, one layer."""

    def __init__(
        self, embed_norm: Norm, stream_norm: Norm, merge: Linear, layers: list[Layer], norm: Norm
    ):
        super().__init__()
        self.embed_norm, self.stream_norm, self.norm = embed_norm, stream_norm, norm
        self.merge, self.layers = merge, nn.ModuleList(layers)


@dataclass(frozen=True)
class MtpDraft:
    """What the module has read, and what of the model's stream it has not.

    Attributes:
        cache: Of its one layer; slot i holds what it read at place i.
        stream_BTD: The model's stream at the places from `cache.length_B` on, not normed yet; at
            those whose next token the text lacks it does not matter.
    """

    cache: Cache
    stream_BTD: Float[Array, "B T D"]


class Stream:
    """A tap that keeps the model's stream behind its last layer, not normed yet."""

    def __init__(self, config: ModelConfig):
        self.name = f"layers.{config.num_layers - 1}.resid"
        self.x_BTD: Array | None = None

    def __call__(self, name: str, x: Array) -> Array:
        """Return x as it is."""
        if name == self.name:
            self.x_BTD = x
        return x

    @property
    def heard_BTD(self) -> Float[Array, "B T D"]:
        """What the last forward left."""
        assert self.x_BTD is not None  # a forward went before
        return self.x_BTD


def stack_of(config: ModelConfig) -> ModelConfig:
    """Return the config of the module's one layer, for its cache."""
    return replace(config, layers=config.layers[-1:], draft_layers=0, has_mtp=False)


@torch.no_grad()
def predict(
    params: Params,
    stream_BTD: Float[Array, "B T D"],
    ids_BT: Int[Array, "B T"],
    cache: Cache,
    count_B: Int[Array, " B"],
    *,
    config: ModelConfig,
    fresh: bool = False,
    rectangular: bool = False,
) -> tuple[Float[Array, "B T D"], Cache]:
    """Return the module's own stream, normed as the head takes it, and the cache with T places.

    Args:
        params: The model's, from `params_of`.
        stream_BTD: The model's normed stream at T places, or the module's own of the place before.
        ids_BT: int32, the token after each place.
        cache: From `caches.init(stack_of(config))`; consumed.
        count_B: int32, how many of the T places of each row are real.
        config: The model's.
        fresh: See `forward`.
        rectangular: See `forward`.
    """
    own, module = stack_of(config), params["mtp"]
    cache, step = caches.begin(
        cache, count_B, T=ids_BT.shape[1], fresh=fresh, rectangular=rectangular, clean=True
    )
    halves = (
        norm(module["embed_norm"], params["embed"][ids_BT.long()], own.norm),
        norm(module["stream_norm"], stream_BTD, own.norm),
    )
    x_BTD, sites = run_layers(
        module,
        linear(module["merge"], torch.cat(halves, 2)),
        cache.sites,
        step,
        own.layers,
        own,
        Dropout(0.0, None),
        no_tap,
    )
    return norm(module["norm"], x_BTD, own.norm), caches.commit(cache, step, sites)


def open_mtp(
    params: Params,
    stream_BTD: Float[Array, "B T D"],
    ids_BT: Int[Array, "B T"],
    cache: Cache,
    count_B: Int[Array, " B"],
    *,
    config: ModelConfig,
    rectangular: bool,
) -> MtpDraft:
    """Return the module once it has read the prompts, all places but their last.

    Args:
        params: The model's.
        stream_BTD: Behind its last layer, of the prompts, as `Stream` keeps it.
        ids_BT: int32 prompts from the left.
        cache: Empty; consumed.
        count_B: int32, tokens of each; 0 for a row that wants no drafts.
        config: The model's.
        rectangular: Whether all rows have one count.
    """
    read_B = (count_B - 1).clamp(min=0)
    if width := int(read_B.max()):
        said_BTD, after_BT = stream_BTD[:, :width], ids_BT[:, 1 : width + 1]
        _, cache = predict(
            params,
            norm(params["norm"], said_BTD, config.norm),
            after_BT,
            cache,
            read_B,
            config=config,
            fresh=True,
            rectangular=rectangular,
        )
    row_B = torch.arange(len(read_B), device=read_B.device)
    return MtpDraft(cache, stream_BTD[row_B, read_B.long()].unsqueeze(1))


def draft_mtp(
    params: Params,
    mtp: MtpDraft,
    text: Text,
    terms: Terms,
    want_B: Int[Array, " B"],
    *,
    config: ModelConfig,
    k: int,
) -> tuple[Drafts, MtpDraft]:
    """Return the module's drafts, one after the other, and the module without them.

    First it reads the places whose stream the model has made since; what it reads of its own
    results is rolled back, since the model will make those streams.

    Args:
        params: The model's.
        mtp: What it has read; its cache is consumed.
        text: What it continues.
        terms: Drafts are drawn as the rows' tokens are, with random numbers of their own.
        want_B: int32, drafts of each row; one that wants none is not forwarded.
        config: The model's.
        k: K.

    Cost: as many steps of the module as the row that wants most.
    """
    cache, drafted, q = mtp.cache, [], []
    tokens_BS = text.tokens_BS.clone()
    held_B, read_B = cache.length_B, (text.length_B - 1 - cache.length_B) * (want_B > 0)
    row_B, said_B1D = torch.arange(len(want_B), device=want_B.device), mtp.stream_BTD[:, :1]
    for at in range(int(want_B.max())):
        if at == 0:
            width = int(read_B.max())
            place_BT = held_B.unsqueeze(1) + 1 + torch.arange(width, device=want_B.device)
            ids_BT = text.tokens_BS.gather(1, place_BT.clamp(max=text.tokens_BS.shape[1] - 1))
            said_BTD = norm(params["norm"], mtp.stream_BTD[:, :width], config.norm)
            said_BTD, cache = predict(params, said_BTD, ids_BT, cache, read_B, config=config)
            said_B1D = said_BTD[row_B, (read_B.long() - 1).clamp(min=0)].unsqueeze(1)
        else:
            last_B1, one_B = drafted[-1].unsqueeze(1), (want_B > at).int()
            said_B1D, cache = predict(params, said_B1D, last_B1, cache, one_B, config=config)
        said = project(params, said_B1D, config)
        known = tokens_BS, text.length_B + at, text.new_B + at
        next_B, q_BV = draw_drafts(said, terms, *known)
        # Beyond a row's room there is no row that wants a draft.
        place_B1 = (text.length_B.long() + at).clamp(max=tokens_BS.shape[1] - 1).unsqueeze(1)
        tokens_BS.scatter_(1, place_B1, next_B.unsqueeze(1))
        drafted.append(next_B)
        q += [] if q_BV is None else [q_BV]
    cache = caches.rollback(cache, torch.minimum(cache.length_B, held_B + read_B))
    ids_BK = torch.stack([*drafted, *[torch.zeros_like(want_B)] * (k - len(drafted))], 1)
    return Drafts(ids_BK, want_B, torch.stack(q, 1) if q else None), replace(mtp, cache=cache)
