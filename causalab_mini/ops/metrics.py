"""Scores of reads, one number a row. One function a metric, the table of them at the end.

Every function sees (row, feature) tensors of the rows that can be scored and works in fp32 (fp64 for sums of many terms).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, kl_div


@dataclass(frozen=True, slots=True)
class Scored:
    """What a metric works on.

    Attributes:
        of: (row, feature), the read that is scored; logits for the metrics over a vocabulary.
        against: (row, feature), the read that it is compared with.
        tokens: (row,) token ids by column key.
        classes: (row, class) token ids, padded by repeating the first.
        how: of `value`.
        is_key: (row, feature), what is no padding, of a read whose features are keys.
    """

    of: Tensor
    against: Tensor | None = None
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    classes: Tensor | None = None
    how: str = ""
    is_key: Tensor | None = None

    def logit(self, key: str) -> Tensor:
        """Returns each row's logit of its token in a column."""
        return self.of.gather(-1, self.tokens[key][:, None])[:, 0]

    @property
    def other(self) -> Tensor:
        """The read that it is compared with, of a metric that has one."""
        assert self.against is not None
        return self.against


def match(scored: Scored) -> Tensor:
    """Returns 1 where the most likely token is the expected one; in [0, 1].

    Source: interchange intervention accuracy, Geiger et al. 2022, "Inducing causal structure for interpretable neural networks".
    """
    return (scored.of.argmax(dim=-1) == scored.tokens["expected"]).to(torch.float32)


def logit_diff(scored: Scored) -> Tensor:
    """Returns logit of a minus logit of b; in logits.

    Source: Wang et al. 2022, "Interpretability in the wild".
    """
    return scored.logit("a") - scored.logit("b")


def cross_entropy(scored: Scored) -> Tensor:
    """Returns minus the natural logarithm of the target's probability; in nats, at least 0.

    Source: −log softmax(z)[target].
    """
    return scored.of.logsumexp(dim=-1) - scored.logit("target")


def token_logit(scored: Scored) -> Tensor:
    """Returns the token's logit. Source: z[token]."""
    return scored.logit("token")


def token_prob(scored: Scored) -> Tensor:
    """Returns the token's probability; in [0, 1]. Source: softmax(z)[token]."""
    return (scored.logit("token") - scored.of.logsumexp(dim=-1)).exp()


def rank(scored: Scored) -> Tensor:
    """Returns how many tokens have a greater logit; 0 is the most likely.

    Source: rank of the answer under the logit lens, nostalgebraist 2020, "Interpreting GPT: the logit lens".
    """
    return (scored.of > scored.logit("token")[:, None]).sum(dim=-1).to(torch.float32)


def kl(scored: Scored) -> Tensor:
    """Returns KL(of ‖ against) of the predicted distributions; in nats, at least 0.

    Source: Kullback and Leibler 1951, "On information and sufficiency", Σ p log(p / q).
    """
    p, q = scored.of.log_softmax(dim=-1), scored.other.log_softmax(dim=-1)
    return kl_div(q, p, reduction="none", log_target=True).sum(dim=-1)


def js(scored: Scored) -> Tensor:
    """Returns the Jensen–Shannon divergence of the predicted distributions; in nats, from 0 to log 2.

    Source: Lin 1991, "Divergence measures based on the Shannon entropy", with equal weights.
    """
    p, q = scored.of.log_softmax(dim=-1), scored.other.log_softmax(dim=-1)
    middle = torch.logsumexp(torch.stack([p, q]), dim=0) - torch.log(torch.tensor(2.0, dtype=p.dtype))
    from_p, from_q = (kl_div(middle, side, reduction="none", log_target=True).sum(dim=-1) for side in (p, q))
    return 0.5 * (from_p + from_q)


def cosine(scored: Scored) -> Tensor:
    """Returns the cosine of the angle between two reads; in [-1, 1]. Source: x·y / (‖x‖ ‖y‖)."""
    return cosine_similarity(scored.of, scored.other, dim=-1)


def value(scored: Scored) -> Tensor:
    """Returns the sum, mean, Euclidean norm or greatest of the features. Source: Σ xᵢ, Σ xᵢ / n, √Σ xᵢ², max xᵢ."""
    there = torch.ones_like(scored.of, dtype=torch.bool) if scored.is_key is None else scored.is_key
    match scored.how:
        case "sum":
            return scored.of.sum(dim=-1)
        case "mean":
            return scored.of.sum(dim=-1) / there.sum(dim=-1)
        case "norm":
            norm: Tensor = torch.linalg.vector_norm(scored.of, dim=-1)
            return norm
    return scored.of.masked_fill(~there, float("-inf")).amax(dim=-1)


def class_match(scored: Scored) -> Tensor:
    """Returns 1 where the expected token has the greatest logit of its row's classes; in [0, 1].

    Source: forced choice between the answers of a task, e.g. Vig et al. 2020, "Investigating gender bias in language models".
    """
    assert scored.classes is not None
    chosen = scored.of.gather(-1, scored.classes).argmax(dim=-1)
    best = scored.classes.gather(-1, chosen[:, None])[:, 0]
    return (best == scored.tokens["expected"]).to(torch.float32)


def log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns the log-probability of a token at each position.

    Args:
        logits: (position, vocabulary).
        tokens: (position,).

    Returns:
        (position,), in nats. Source: the chain rule, log p(answer) = Σ log p(token | before).
    """
    return logits.log_softmax(dim=-1).gather(-1, tokens[:, None])[:, 0]


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k most likely tokens of each row and their probabilities, most likely first; both (row, k). Source: softmax(z)."""
    probabilities, tokens = logits.softmax(dim=-1).topk(min(k, logits.shape[-1]), dim=-1)
    return tokens, probabilities


METRICS: Mapping[str, Callable[[Scored], Tensor]] = {
    "match": match,
    "logit_diff": logit_diff,
    "cross_entropy": cross_entropy,
    "token_logit": token_logit,
    "token_prob": token_prob,
    "rank": rank,
    "kl": kl,
    "js": js,
    "cosine": cosine,
    "value": value,
    "class_match": class_match,
}
"""The metrics that are one number of one row; `top_k`, `recovered` and `answer_logprob` are made where tables are made."""
