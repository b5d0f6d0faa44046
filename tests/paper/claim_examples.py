"""For every claim numbers that bear it out, and counter-examples: what its rule is tried with."""

# id -> numbers for which it holds; what to change so that it holds in part; so that it does not
EXAMPLES = {
    "norm-sqrt": (
        {"r2 of a√t + b": 0.999, "r2 of √(b² + a²t)": 0.99, "evidence for √(b² + a²t)": -3.0},
        {"evidence for √(b² + a²t)": 5.0},
        {"r2 of a√t + b": 0.97},
    ),
    "norm-layers": (
        {
            "least factor of growth": 3.0,
            "least r2 of a√t + b": 0.995,
            "rank correlation of slope and layer": 0.97,
        },
        {"rank correlation of slope and layer": 0.2},
        {"least factor of growth": 0.9},
    ),
    "direction-consecutive": (
        {
            "cosine, first interval": 0.8,
            "cosine, last interval": 0.997,
            "least of a layer, last interval": 0.996,
            "layers differ by, last interval": 0.001,
        },
        {"layers differ by, last interval": 0.1},
        {"cosine, last interval": 0.9},
    ),
    "direction-converges": (
        {"q": 2.5, "q, at least": 2.2, "q, at most": 2.8, "angles summed, in degrees": 50.0},
        None,
        {"q": 0.8, "q, at least": 0.7, "q, at most": 0.9},
    ),
    "alignment": (
        {"largest alignment": 0.15, "alignment at the end": 0.001, "share of growth by steps": 0.99},
        {"share of growth by steps": 0.5},
        {"alignment at the end": 0.14},
    ),
    "step-size": (
        {
            "largest minus least, later half": 15.0,
            "mean, later half": 300.0,
            "last": 286.0,
            "last, expected of its fewer steps": 286.0,
        },
        {"last": 200.0},
        {"largest minus least, later half": 100.0},
    ),
    "uniform-growth": (
        {
            "T5: least factor of a layer": 6.0,
            "T5: largest": 6.3,
            "models here: least ratio of factors": 1.01,
            "models here: largest ratio": 1.04,
        },
        {"T5: largest": 9.0},
        {"T5: largest": 30.0, "models here: least ratio of factors": 2.5, "models here: largest ratio": 3.0},
    ),
    "lm-growth": (
        {"models": 5.0, "that grew": 5.0, "least factor": 1.1, "largest factor": 1.4},
        {"that grew": 3.0, "least factor": 0.9},
        {"that grew": 0.0, "least factor": 0.8, "largest factor": 0.9},
    ),
    "saturation-lm": (
        {
            "models": 3.0,
            "at 0.98 or more": 3.0,
            "least level": 0.99,
            "largest level": 1.0,
            "to other tokens, at the largest level": 0.3,
        },
        {"at 0.98 or more": 1.0},
        {"at 0.98 or more": 0.0},
    ),
    "heads-bimodal": (
        {
            "heads": 144.0,
            "at one position": 0.5,
            "at all": 0.45,
            "leaking mask: heads": 144.0,
            "leaking mask: at one position": 0.5,
        },
        {"at one position": 0.9, "at all": 0.05},
        {"at one position": 1.0, "at all": 0.0},
    ),
    "saturation-limit": (
        {
            "networks": 4.0,
            "largest distance from the limit": 1e-8,
            "at a tie: largest weight of the saturated network": 0.5,
            "at a tie: the same as weights grow": 0.5,
        },
        {"at a tie: the same as weights grow": 1.0},
        {"largest distance from the limit": 0.3},
    ),
    "attention-power": (
        {
            "languages": 4.0,
            "strings": 1000.0,
            "wrong, saturated": 0.0,
            "wrong, soft with large weights": 0.0,
            "strings of aⁿbⁿcⁿ's alphabet": 500.0,
        },
        None,
        {"wrong, saturated": 1.0},
    ),
    "homogeneity-table": (
        {
            "components": 60.0,
            "printed": 50.0,
            "printed as computed": 50.0,
            "largest difference of computed and measured": 1e-6,
        },
        {"printed as computed": 48.0},
        {"printed as computed": 10.0},
    ),
    "encoder-degree": (
        {
            "paper's pre-norm without biases": 1.0,
            "with a linear classifier": 2.0,
            "usual pre-norm": 3.0,
            "post-norm": 1.0,
        },
        None,
        {"paper's pre-norm without biases": 1.1},
    ),
    "homogeneous-gradient": (
        {
            "gradients": 60.0,
            "largest error of their degree": 1e-5,
            "κ, later half over earlier: least": 0.95,
            "κ, later half over earlier: largest": 1.05,
            "largest factor of growth": 3.0,
        },
        {"κ, later half over earlier: largest": 2.0},
        {"largest error of their degree": 0.5},
    ),
    "scaling-curves": (
        {
            "least cosine at c = 1": 0.1,
            "least cosine at c = 10": 0.98,
            "largest distance from the published curves": 0.05,
        },
        {"largest distance from the published curves": 0.3},
        {"least cosine at c = 10": 0.5},
    ),
    "biases": (
        {
            "largest difference of curves with and without biases": 0.01,
            "largest scale": 10.0,
            "networks whose degree biases change": 0.0,
            "networks": 6.0,
        },
        {"largest difference of curves with and without biases": 0.2},
        {"networks whose degree biases change": 1.0},
    ),
    "saturation-pretrained": (
        {
            "models of the paper that are here": 4.0,
            "of these closer": 4.0,
            "another model, trained": 0.5,
            "another model, random": 0.02,
        },
        {"of these closer": 2.0},
        {"of these closer": 0.0},
    ),
    "dynamics": (
        {
            "misaligned, κ = 1: norm as t to the power": 0.5,
            "misaligned, κ = ½: norm as t to the power": 0.5,
            "T5: κ": 0.7,
            "T5: norm at the end": 4000.0,
            "T5: misaligned dynamics end at": 4100.0,
            "T5: log10 of where aligned dynamics end": 8.0,
        },
        {"misaligned, κ = ½: norm as t to the power": 0.125},
        {"misaligned, κ = 1: norm as t to the power": 0.7},
    ),
    "weight-decay": (
        {
            "growth ends at λ, least": 0.002,
            "growth ends at λ, largest": 0.01,
            "as a power of η": 0.05,
            "at η = 0.001": 0.011,
            "over λ*, median": 1.0,
        },
        {"as a power of η": 1.0},
        {"at η = 0.001": 0.004},
    ),
}
