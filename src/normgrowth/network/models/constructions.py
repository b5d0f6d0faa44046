"""Saturated networks built by hand show what argmax heads and mean heads can compute (section 4.2 of the paper).

Each is a causal transformer without biases, residuals or norms, and its weights are set by hand:

    case_of_greatest   an argmax head retrieves the position with the largest score
    majority           a mean head compares the numbers of two symbols
    counter            a mean head counts, by comparison with the begin mark
    anbn, anbncn, dyck1   membership: mean heads count, argmax heads read the current and the previous symbol

All weights θ are parameters, including the embeddings, and every path from them to the logits has the same number of
factors. So f(x; cθ) is c^degree times the same network with its scores multiplied by c⁴ (embedding and query, embedding
and key). As c → ∞ its attention saturates and nothing else changes: `network(tokens, saturated=True)` is that limit,
divided by c^degree. The token itself reaches the feedforward through a head, not through a residual connection, because
terms of lower degree would vanish in the limit.

`sufficient_scale` returns a c from which on the soft network f(x; cθ) decides like the limit.

    network = anbn(max_length=12)
    tokens = network.encode(["aabb", "abab"])
    network(tokens, saturated=True) > 0              # [[True], [False]]
    network.scaled(tokens, sufficient_scale(network, 4)) > 0
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normgrowth.errors import InputError
from normgrowth.network.saturated_attention import saturated_attention

BEGIN, END = "^", "$"
SCORE_DEGREE = 4  # degree of the scores of the first layer, which has all argmax heads
PLACES = ("one", "place", "place²")
Name = str | tuple[str, str]  # a feature; after attention, (head, feature)


class Layer(nn.Module):
    """Parallel causal attention heads, then relu(W·). Head h has scores (x Q_h)(x K_h)ᵀ and values x V_h."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, feedforward: Tensor):
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(w) for w in (query, key, value))  # [heads, D, ·]
        self.feedforward = nn.Parameter(feedforward)  # [heads·features, units]

    def scores(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-3)
        return (x @ self.query) @ (x @ self.key).mT  # [batch, heads, N, N]

    def forward(self, x: Tensor, saturated: bool = False) -> Tensor:
        x = x.unsqueeze(-3)
        q, k, v = x @ self.query, x @ self.key, x @ self.value
        if saturated:
            attended = saturated_attention(q, k, v, causal=True, scale=1.0)
        else:
            attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return torch.relu(attended.transpose(-3, -2).flatten(-2) @ self.feedforward)


class Construction(nn.Module):
    """Tokens [batch, N] -> logits [batch, outputs] at the last position, the end mark.

    gap: in each argmax head, the maximal score exceeds every other by at least this much (at θ).
    margin(N): the smallest nonzero absolute logit of the limit, over all strings of N marks and symbols
    (`case_of_greatest`: over strings with a unique greatest letter).
    """

    def __init__(
        self,
        symbols: Sequence[str],
        embedding: Tensor,
        positions: Tensor,
        layers: Sequence[Layer],
        readout: Tensor,
        gap: float,
        margin: Callable[[int], float],
    ):
        super().__init__()
        self.symbols = tuple(symbols)
        self.embedding, self.positions = nn.Parameter(embedding), nn.Parameter(positions)
        self.layers = nn.ModuleList(layers)
        self.readout = nn.Parameter(readout)
        self.gap, self.margin = gap, margin
        self.degree = 2 + 2 * len(layers)

    def encode(self, words: Sequence[str]) -> Tensor:
        """Strings of one length -> tokens, between a begin and an end mark."""
        number = {symbol: i for i, symbol in enumerate(self.symbols)}
        if len({len(word) for word in words}) != 1:
            raise InputError("all strings of a batch must have the same length")
        if len(words[0]) + 2 > len(self.positions):
            raise InputError(f"{words[0]!r} is longer than max_length, {len(self.positions) - 2}")
        try:
            return torch.tensor([[number[symbol] for symbol in (BEGIN, *word, END)] for word in words])
        except KeyError as error:
            raise InputError(f"{error.args[0]!r} is not a symbol of this network") from None

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens] + self.positions[: tokens.shape[-1]]

    def forward(self, tokens: Tensor, saturated: bool = False) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, saturated)
        return x[..., -1, :] @ self.readout

    def scaled(self, tokens: Tensor, c: float) -> Tensor:
        """f(x; cθ), soft."""
        return functional_call(self, {name: c * p for name, p in self.named_parameters()}, (tokens,))


def sensitivity(network: Construction) -> float:
    """L such that logits change by at most L·ε if each argmax head moves a share ε of its weight to other positions.

    A head's output is a mean of values, so moving a share ε changes feature f by at most ε times the range of f over
    the tokens. A relu, a mean and a sum with weights w multiply errors by at most 1, 1 and |w|. A head without queries
    has equal scores at all positions: it is a mean at every c, without error.
    """
    first, *others = [layer for layer in network.layers if isinstance(layer, Layer)]
    values = network.embedding @ first.value  # [heads, tokens, features]
    error = (values.amax(-2) - values.amin(-2)) * first.query.abs().amax((1, 2)).sign()[:, None]
    error = error.flatten() @ first.feedforward.abs()
    for layer in others:
        if layer.query.any():
            raise InputError(
                "argmax heads are supported in the first layer only: later gaps depend on earlier errors"
            )
        error = (error @ layer.value.abs()).flatten() @ layer.feedforward.abs()
    return float((error @ network.readout.abs()).max())


def sufficient_scale(network: Construction, length: int) -> float:
    """A c from which on f(x; cθ) has the same sign as its limit, for all strings of up to `length` symbols.

    Proof. Let N = length + 2 positions, g the gap, L the sensitivity, μ the margin. At cθ the scores are c⁴
    times those at θ, so each position that is not the maximum has at most exp(−c⁴g) times the weight of
    the maximum, and all of them together have a share ε < (N − 1)·exp(−c⁴g). The logit, divided by
    c^degree, then differs from the limit by at most L·ε, which is less than μ, the distance of the limit
    from 0, if c⁴ ≥ ln(L·(N − 1)/μ)/g. Shorter strings have a larger μ.

    0 means that every c > 0 suffices: the network has only mean heads, which are exact at every c.
    """
    positions = length + 2
    moved = sensitivity(network) * (positions - 1) / network.margin(positions)
    return (math.log(moved) / network.gap) ** (1 / SCORE_DEGREE) if moved > 1 else 0.0


def case_of_greatest(letters: str = "abc", max_length: int = 12) -> Construction:
    """Positive logit if the greatest letter (last in the alphabet) is a capital. One argmax head.

    For every query, the score of a position is the rank of its letter (marks: 0), and its value is the letter's case.
    If the greatest letter occurs more than once, the head averages: positive if most occurrences are capitals.
    """
    rank = {symbol: float(letters.index(symbol.lower()) + 1) for symbol in letters + letters.upper()}
    cases = {symbol: {"capital" if symbol.isupper() else "small": 1.0} for symbol in rank}
    extra = {symbol: {"rank": rank[symbol], **cases[symbol]} for symbol in rank}
    return _assemble(
        symbols=[*rank],
        extra=extra,
        heads={"greatest": ([{"one": 1.0}], [{"rank": 1.0}])},
        units=[({("greatest", "capital"): 1.0}, [1.0]), ({("greatest", "small"): 1.0}, [-1.0])],
        max_length=max_length,
        margin=lambda _: 1.0,
    )


def majority(more: str = "a", less: str = "b", max_length: int = 12) -> Construction:
    """The logit is exactly (#more − #less)/N at every c (times c^degree). One mean head."""
    return _assemble(
        symbols=[more, less],
        heads={"mean": ([], [])},
        units=[({("mean", more): 1.0}, [1.0]), ({("mean", less): 1.0}, [-1.0])],
        max_length=max_length,
        margin=lambda positions: 1 / positions,
    )


def counter(counted: str = "a", other: str = "b", max_length: int = 12) -> Construction:
    """Count a symbol: logit m is −|count − m|/N, so the count is the argmax of the logits, at every c.

    The mean of [symbol = counted] is count/N and the mean of the begin mark is 1/N, so count = m where the first is m
    times the second.
    """
    units = []
    for m in range(max_length + 1):
        answer = [0.0] * m + [-1.0] + [0.0] * (max_length - m)
        for sign in (1.0, -1.0):
            units.append(({("mean", counted): sign, ("mean", BEGIN): -sign * m}, answer))
    heads = {"mean": ([], [])}
    return _assemble([counted, other], heads, units, max_length, margin=lambda positions: 1 / positions)


def anbn(max_length: int = 12) -> Construction:
    """Recognizer of aⁿbⁿ, n ≥ 0: as many a as b, and no a right after a b."""
    return recognizer("ab", equal=["ab"], forbidden=["ba"], max_length=max_length)


def anbncn(max_length: int = 12) -> Construction:
    """Recognizer of aⁿbⁿcⁿ, n ≥ 0: as many a as b as c, and never ba, ca, cb."""
    return recognizer("abc", equal=["ab", "bc"], forbidden=["ba", "ca", "cb"], max_length=max_length)


def dyck1(max_length: int = 12) -> Construction:
    """Recognizer of balanced brackets: as many ( as ), and no prefix with more ) than (."""
    return recognizer("()", equal=["()"], never_more=[")("], max_length=max_length)


def recognizer(
    alphabet: str,
    equal: Sequence[str] = (),
    forbidden: Sequence[str] = (),
    never_more: Sequence[str] = (),
    max_length: int = 12,
) -> Construction:
    """A network with a positive logit if the string violates no rule. Rules are pairs xy.

    equal: #x = #y in the whole string. forbidden: y right after x. never_more: no prefix has #x > #y.

    The first layer detects violations at each position i: `this` and `previous` are argmax heads with scores
    −(i − j)² and −(i − 1 − j)², gap 1; `mean` computes counts/(i + 1). Its units are
        forbidden    relu([previous = x] + [this = y] − 1), which is 0 or 1
        never_more   relu(#x − #y)/(i + 1)
        equal        relu(±(#x − #y)/(i + 1) − 1 + [this = $]): nonzero at the end mark only
        yardstick    relu([begin]/(i + 1) − 1 + [this = $]), which is 1/N at the end mark
    The second layer takes their means. A violation is at least 1/N at some position, so its mean is at least 1/N²; the
    mean of the yardstick is exactly 1/N². The logit is half of the yardstick minus the violations: 1/(2N²) without
    violations, else at most −1/(2N²). So the margin is 1/(2N²).
    """
    at_end = {("this", "one"): -1.0, ("this", END): 1.0}
    units = [({("mean", BEGIN): 1.0, **at_end}, [0.5])]
    for x, y in equal:
        units += [({("mean", x): s, ("mean", y): -s, **at_end}, [-1.0]) for s in (1.0, -1.0)]
    for x, y in never_more:
        units.append(({("mean", x): 1.0, ("mean", y): -1.0}, [-1.0]))
    for x, y in forbidden:
        units.append(({("previous", x): 1.0, ("this", y): 1.0, ("this", "one"): -1.0}, [-1.0]))
    heads = {"this": _look_back(0), "mean": ([], [])}
    if forbidden:
        heads["previous"] = _look_back(1)
    return _assemble(
        list(alphabet),
        heads,
        units,
        max_length,
        margin=lambda positions: 1 / (2 * positions**2),
        collect=True,
    )


Columns = list[dict[str, float]]  # columns of a matrix, each a weighted sum of features


def _look_back(steps: int) -> tuple[Columns, Columns]:
    """Query and key of the score 2(i − steps)j − j², which is −(i − steps − j)² up to a term without j."""
    return [{"place": 2.0, "one": -2.0 * steps}, {"one": -1.0}], [{"place": 1.0}, {"place²": 1.0}]


def _matrix(rows: Sequence[Name], columns: Sequence[Mapping], width: int | None = None) -> Tensor:
    matrix = torch.zeros(len(rows), len(columns) if width is None else width, dtype=torch.float64)
    for j, column in enumerate(columns):
        for name, weight in column.items():
            matrix[rows.index(name), j] = weight
    return matrix


def _assemble(
    symbols: list[str],
    heads: Mapping[str, tuple[Columns, Columns]],
    units: list[tuple[dict[tuple[str, str], float], list[float]]],
    max_length: int,
    margin: Callable[[int], float],
    extra: Mapping[str, Mapping[str, float]] | None = None,
    collect: bool = False,
) -> Construction:
    """Return a construction with these heads and units.

    heads: name -> (queries, keys). units: pairs of a unit's inputs and its weight in each logit. extra: features of
    symbols. collect: add a second layer that takes the means of the units.
    """
    symbols = [*symbols, BEGIN, END]
    extra = extra or {}
    more = list(dict.fromkeys(name for features in extra.values() for name in features))
    features = [*symbols, *more, *PLACES]
    tokens = [{symbol: 1.0, "one": 1.0, **extra.get(symbol, {})} for symbol in symbols]
    places = [{"place": float(i), "place²": float(i**2)} for i in range(max_length + 2)]

    width = max(1, *(len(queries) for queries, _ in heads.values()))
    query = torch.stack([_matrix(features, queries, width) for queries, _ in heads.values()])
    key = torch.stack([_matrix(features, keys, width) for _, keys in heads.values()])
    seen = [name for name in features if name not in ("place", "place²")]  # values exclude the positions
    value = _matrix(features, [{name: 1.0} for name in seen]).expand(len(heads), -1, -1).clone()
    feedforward = _matrix([(head, name) for head in heads for name in seen], [inputs for inputs, _ in units])
    layers = [Layer(query, key, value, feedforward)]
    if collect:
        nothing = torch.zeros(1, len(units), 1, dtype=torch.float64)
        identity = torch.eye(len(units), dtype=torch.float64)
        layers.append(Layer(nothing, nothing.clone(), identity[None].clone(), identity))
    readout = torch.tensor([answer for _, answer in units], dtype=torch.float64)
    embedding, positions = (_matrix(features, rows).mT.contiguous() for rows in (tokens, places))
    return Construction(symbols, embedding, positions, layers, readout, gap=1.0, margin=margin)
