"""For every claim numbers for which it holds, and counterexamples."""

# id -> numbers for which it holds; what to change so that it holds in part; so that it does not
EXAMPLES = {
    "norm-sqrt": (
        {
            "r2_sqrt": {"total": 0.99, "encoder": 0.999},
            "r2_sqrt2": {"total": 0.999, "encoder": 0.99},
            "power": {"total": 0.5, "encoder": 0.5},
        },
        {"r2_sqrt2": {"total": 0.98, "encoder": 0.98}},
        {"r2_sqrt": {"total": 0.9, "encoder": 0.9}, "r2_sqrt2": {"total": 0.98, "encoder": 0.98}},
    ),
    "norm-intercept": (
        {"r2": {"total": 0.999, "encoder": 0.999}, "delta_aicc": {"total": -3.0, "encoder": 1.0}},
        {"delta_aicc": {"total": -3.0, "encoder": 4.0}},
        {"r2": {"total": 0.999, "encoder": 0.9}},
    ),
    "norm-layers": (
        {"least_factor": 3.0, "least_r2": 0.995, "rank_correlation": 0.7, "p_value": 0.01},
        {"rank_correlation": 0.2, "p_value": 0.5},
        {"least_factor": 0.9},
    ),
    "direction-consecutive": (
        {"first": 0.8, "last": 0.997, "least_layer": 0.996, "layer_spread": 0.001},
        {"layer_spread": 0.1},
        {"last": 0.9},
    ),
    "direction-converges": (
        {"q": 2.5, "q_low": 2.2, "q_high": 2.8, "total_degrees": 50.0},
        None,
        {"q": -0.1, "q_low": -0.2, "q_high": -0.01},
    ),
    "alignment": (
        {
            "largest": {"total": 0.15, "encoder": 0.1},
            "at_end": {"total": 0.001, "encoder": 0.01},
            "share_steps": {"total": 0.99, "encoder": 0.95},
            "rounding": 1e-4,
        },
        {"share_steps": {"total": 0.99, "encoder": 0.5}},
        {"at_end": {"total": 0.001, "encoder": 0.12}},
    ),
    "step-size": (
        {
            "change": {"total from 30%": 15.0, "encoder from 30%": 2.0, "decoder from 30%": 90.0},
            "mean": {"total": 300.0, "encoder": 170.0, "decoder": 250.0},
            "last": 286.0,
            "expected_last": 286.0,
            "rounding": 0.05,
        },
        {"change": {"total from 30%": 26.0, "encoder from 30%": 2.0}},
        {"change": {"total from 30%": 100.0, "encoder from 30%": 80.0}},
    ),
    "uniform-growth": (
        {
            "t5_least": 6.0,
            "t5_largest": 9.0,
            "t5_move": 0.05,
            "t5_least_power": 0.4,
            "t5_largest_power": 0.5,
            "models": 4.0,
            "steady": 4.0,
            "largest_move": 0.03,
        },
        {"steady": 3.0, "largest_move": 0.3},
        {"t5_move": 0.4, "steady": 0.0, "largest_move": 0.3},
    ),
    "scalar-growth": (
        {"models": 3.0, "least": 0.995, "largest": 1.0, "sign_changed": 0.001, "growth": 5.0},
        {"least": 0.95},
        {"least": 0.55, "sign_changed": 0.08},
    ),
    "lm-growth": (
        {"models": 5.0, "grew": 5.0, "least": 1.1, "largest": 1.4, "runs": 7.0, "fell": {}},
        {"fell": {"penn, control": 0.99}},
        {"grew": 0.0, "least": 0.8, "largest": 0.9},
    ),
    "saturation-lm": (
        {
            "models": 3.0,
            "saturated": 3.0,
            "least": 0.99,
            "largest": 1.0,
            "others": 0.3,
            "layers": 12.0,
            "epochs": 5.0,
        },
        {"saturated": 1.0},
        {"saturated": 0.0},
    ),
    "heads-bimodal": (
        {"heads": 144.0, "at_one": 0.5, "at_all": 0.45, "leaking_heads": 144.0, "leaking_at_one": 0.5},
        {"at_one": 0.9, "at_all": 0.05},
        {"at_one": 1.0, "at_all": 0.0},
    ),
    "max-margin": (
        {
            "models": 6.0,
            "separating": 2.0,
            "rising": 2.0,
            "separated": 1.0,
            "medians_rise": 5.0,
            "median_first": 0.001,
            "median_last": 0.002,
        },
        {"rising": 1.0},
        {"rising": 0.0},
    ),
    "conversion": (
        {
            "models": 6.0,
            "saturated": 2.0,
            "converted": 2.0,
            "level": 0.99,
            "least": 0.8,
            "largest": 0.95,
            "random": 0.1,
            "lost": 0.02,
            "kept": -0.01,
        },
        {"converted": 1.0, "least": 0.1},
        {"converted": 0.0, "lost": 0.2, "kept": 0.1},
    ),
    "heads-local": (
        {
            "heads": 100.0,
            "local": 0.2,
            "closer": 0.6,
            "untrained": 0.5,
            "least": 0.1,
            "median": 0.9,
            "layers": 12.0,
        },
        {"local": 0.01},
        {"local": 0.0, "least": 0.6},
    ),
    "saturation-limit": (
        {"networks": 4.0, "distance": 1e-08, "tie_saturated": 0.5, "tie_moved": 0.5},
        {"tie_moved": 1.0},
        {"distance": 0.3},
    ),
    "attention-power": (
        {"languages": 4.0, "strings": 1000.0, "wrong": 0.0, "wrong_soft": 0.0, "strings_abc": 500.0},
        None,
        {"wrong": 1.0},
    ),
    "homogeneity-table": (
        {"components": 60.0, "printed": 50.0, "correct": 50.0, "difference": 1e-06},
        {"correct": 48.0},
        {"correct": 10.0},
    ),
    "encoder-degree": (
        {"paper_pre_norm": 1.0, "classifier": 2.0, "usual_pre_norm": 3.0, "post_norm": 1.0},
        None,
        {"paper_pre_norm": 1.1},
    ),
    "homogeneous-gradient": (
        {
            "gradients": 60.0,
            "degree_error": 1e-05,
            "least_drift": 0.95,
            "largest_drift": 1.05,
            "largest_growth": 3.0,
        },
        {"largest_drift": 2.0},
        {"degree_error": 0.5},
    ),
    "scaling-curves": ({"at_1": 0.1, "at_10": 0.98, "distance": 0.05}, {"distance": 0.3}, {"at_10": 0.5}),
    "biases": (
        {"difference": 0.01, "largest_scale": 10.0, "changed": 0.0, "networks": 6.0},
        {"difference": 0.2},
        {"changed": 1.0},
    ),
    "saturation-pretrained": (
        {"here": 4.0, "closer": 4.0, "other_trained": 0.5, "other_random": 0.02},
        {"closer": 2.0},
        {"closer": 0.0},
    ),
    "saturation-final": (
        {
            "last": {
                "bert-base-cased": 0.1,
                "roberta-base": 0.65,
                "t5-base": 0.92,
                "xlnet-base-cased": 0.9,
            },
            "mean": {"bert-base-cased": 0.1, "roberta-base": 0.7, "t5-base": 0.5, "xlnet-base-cased": 0.4},
            "before_last": 0.94,
            "missing": {},
        },
        {"missing": {"xlnet-base-cased": 1.0}},
        {"before_last": 0.6},
    ),
    "saturation-depth": (
        {
            "rank": {"t5-base": 0.7, "xlnet-base-cased": 0.9},
            "p_value": {"t5-base": 0.02, "xlnet-base-cased": 0.001},
            "random": {"t5-base": -0.5, "xlnet-base-cased": 0.1},
            "first": {"t5-base": 0.7, "xlnet-base-cased": 0.1},
            "least": {"t5-base": 0.3, "xlnet-base-cased": 0.1},
        },
        {"p_value": {"t5-base": 0.2, "xlnet-base-cased": 0.001}},
        {"rank": {"t5-base": -0.7, "xlnet-base-cased": -0.9}},
    ),
    "saturation-growth": (
        {"rank": 0.8, "p_value": 0.001, "models": 9.0, "positive": 9.0, "sign_p": 0.002},
        {"rank": 0.2, "p_value": 0.4},
        {"rank": -0.8, "positive": 4.0, "sign_p": 0.7},
    ),
    "schedule-decides": (
        {
            "exponents": {"constant": 0.4, "inverse_sqrt": 0.1},
            "pairs": 2.0,
            "least": 0.2,
            "largest": 0.3,
        },
        {"least": 0.01, "largest": 0.07},
        {"least": 0.01, "largest": 0.02},
    ),
    "dynamics": (
        {
            "power": 0.5,
            "power_half": 0.5,
            "t5_kappa": 0.7,
            "t5_end": 4000.0,
            "t5_misaligned": 4100.0,
            "t5_aligned": 8.0,
        },
        {"power_half": 0.125},
        {"power": 0.7},
    ),
    "weight-decay": (
        {"least": 0.002, "largest": 0.01, "power": 0.05, "at_default": 0.011, "over_prediction": 1.0},
        {"power": 1.0},
        {"at_default": 0.004},
    ),
}
