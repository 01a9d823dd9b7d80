"""The feed-forwards of a layer as data: one, or experts of which a router chooses.

Letters: F feed-forward width, Z experts.
Sources: Shazeer et al. 2017 (sparsely gated experts); DeepSeek-V2 (2024), section 2.2.2 (groups);
DeepSeek-V3 (2024), section 2.1.2 (sigmoid and bias).
"""

from dataclasses import dataclass
from typing import Any, Literal

from jaxkv.spec.part import Part, part_of, require, require_above, require_whole

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class Mlp(Part):
    """One feed-forward: down(act(up x)), or down(act(gate x) * up x) when gated.

    "gelu" is the exact one, "gelu_tanh" its approximation by a tanh (GPT-2's).
    """

    width: int
    activation: Activation
    gated: bool
    bias: bool

    def __post_init__(self) -> None:
        require_whole("Mlp", width=self.width)
        known = ("silu", "gelu", "gelu_tanh", "relu")
        require(
            self.activation in known,
            f"Mlp: activation is {self.activation!r}, expected one of {known}.",
        )


@dataclass(frozen=True)
class Routing(Part):
    """What of a router is not the plain softmax over all experts.

    The weight of an expert is its share in the softmax, or with "sigmoid" the sigmoid of its own
    score. With a choice_bias, a learned number an expert is added for the choice alone. Of
    num_groups equal groups of experts, those with the best score take part: top_groups of them, a
    group's score being that of its best expert, or with "top2" the sum of its two best. Weights are
    multiplied by scale at the end.
    """

    scoring: Literal["softmax", "sigmoid"] = "softmax"
    choice_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name, known in (("scoring", ("softmax", "sigmoid")), ("group_score", ("max", "top2"))):
            given = getattr(self, name)
            require(given in known, f"Routing: {name} is {given!r}, expected one of {known}.")
        require_whole("Routing", num_groups=self.num_groups, top_groups=self.top_groups)
        require(
            self.top_groups <= self.num_groups,
            f"Routing: top_groups is {self.top_groups}, expected at most num_groups "
            f"{self.num_groups}.",
        )
        require_above("Routing", 0, scale=self.scale)

    def check(self, num_experts: int, top_k: int) -> None:
        """Check that the groups hold enough experts.

        Raises:
            ConfigError: Experts do not fall into equal groups, or the best groups hold too few.
        """
        groups = self.num_groups
        require(
            num_experts % groups == 0,
            f"Experts: num_experts {num_experts} must be a multiple of routing.num_groups "
            f"{groups}.",
        )
        each = num_experts // groups
        require(
            self.group_score == "max" or groups == 1 or each >= 2,
            f"Experts: a group has {each} expert, expected at least 2 for a score of its two best.",
        )
        require(
            top_k <= self.top_groups * each,
            f"Experts: top_k is {top_k}, expected at most {self.top_groups * each}, what "
            f"{self.top_groups} groups of {each} hold.",
        )


@dataclass(frozen=True)
class Experts(Part):
    """Z feed-forwards, of which a router chooses top_k for each token.

    The weights of the chosen are their shares in the softmax over all Z, unless the routing says
    otherwise; normalized means divided by their sum. A shared feed-forward is added for every
    token.
    """

    num_experts: int
    top_k: int
    normalized: bool
    expert: Mlp
    routing: Routing | None = None
    shared: Mlp | None = None

    def __post_init__(self) -> None:
        require_whole("Experts", num_experts=self.num_experts, top_k=self.top_k)
        require(
            self.top_k <= self.num_experts,
            f"Experts: top_k is {self.top_k}, expected at most num_experts {self.num_experts}.",
        )
        require(
            self.expert.gated and not self.expert.bias,
            "Experts: expert is another feed-forward, expected a gated one without bias.",
        )
        if self.routing is not None:
            self.routing.check(self.num_experts, self.top_k)

    @classmethod
    def _revive(cls, name: str, value: Any) -> Any:
        return part_of({"expert": Mlp, "routing": Routing, "shared": Mlp}, name, value)
