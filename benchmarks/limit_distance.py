"""Compare the exact limit with the network scaled by c. limit_cost.py measures the cost.

python benchmarks/limit_distance.py        measure; write limit.json, pictures and tables of docs/saturated_network.md
python benchmarks/limit_distance.py pages  make the pictures and tables again from limit.json
"""

import copy
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normgrowth.errors import InputError
from normgrowth.limit.saturated import saturated
from normgrowth.network.models.load import load_model
from normgrowth.network.scaled_weights import scaled_weights

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "limit.json"
SCALES = (1, 3, 10, 100, 1000, 10_000, 100_000)
TOKENS = (2, 24)  # sentences, tokens of each


class Float64(TorchFunctionMode):
    """Make norm layers that always compute in float32 compute in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wider(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wider, args), **{key: wider(value) for key, value in (kwargs or {}).items()})


def models() -> Iterator[tuple[str, Callable[[], torch.nn.Module]]]:
    """Yield full-size models of 12 layers with the library's random weights, and one trained model."""
    import transformers as t

    wide: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    yield "BERT", lambda: t.BertModel(t.BertConfig())
    yield "RoBERTa", lambda: t.RobertaModel(t.RobertaConfig())
    yield "XLNet", lambda: t.XLNetModel(t.XLNetConfig(d_model=768, n_layer=12, n_head=12, d_inner=3072))
    yield "GPT-2", lambda: t.GPT2Model(t.GPT2Config())
    yield (
        "T5 encoder",
        lambda: t.T5EncoderModel(t.T5Config(d_model=768, num_layers=12, num_heads=12, d_ff=3072)),
    )
    yield "Llama", lambda: t.LlamaModel(t.LlamaConfig(**wide, intermediate_size=2048, vocab_size=32000))
    yield "OLMo 2", lambda: t.Olmo2Model(t.Olmo2Config(**wide, intermediate_size=2048, vocab_size=32000))
    yield "MiniLM, trained", lambda: load_model("minilm").model


def differences(name: str, make: Callable[[], torch.nn.Module]) -> dict[str, Any]:
    """Return, per layer, the mean over tokens of the cosine to the exact limit in float64."""
    torch.manual_seed(0)
    model = make().eval()
    ids = torch.randint(1000, 20000, TOKENS, generator=torch.Generator().manual_seed(1))
    model.double()
    limit = saturated(model)
    with Float64():
        truth = _states(limit(input_ids=ids, output_hidden_states=True))
    row: dict[str, Any] = {"model": name, "degree": str(limit.degrees[""]), "layers": len(truth)}
    row["tied rows"] = sum(tie.tied for tie in limit.ties) / max(1, sum(tie.rows for tie in limit.ties))
    row["doubtful"] = limit.doubtful
    row["vanished"] = len(limit.vanished) / len(list(model.parameters()))
    for dtype in ("float64", "float32", "bfloat16"):
        model.to(getattr(torch, dtype))
        with _wider(dtype == "float64"):
            states = _states(limit(input_ids=ids, output_hidden_states=True))
            row[f"limit {dtype}"] = _cosines(states, truth)
        if dtype == "bfloat16":  # rounded weights are another network with its own limit, in float64
            rounded = saturated(copy.deepcopy(model).double())
            with Float64():
                own = _states(rounded(input_ids=ids, output_hidden_states=True))
            row["limit bfloat16, same weights"] = _cosines(states, own)
        row[dtype] = {}
        for c in SCALES if dtype != "bfloat16" else (1000,):
            try:
                with scaled_weights(model, c), torch.no_grad(), _wider(dtype == "float64"):
                    found = _states(model(input_ids=ids, output_hidden_states=True))
                row[dtype][str(c)] = _cosines(found, truth)
            except InputError as error:  # the scale overflows the dtype
                row[dtype][str(c)] = str(error)
    return row


@contextmanager
def _wider(wanted: bool) -> Iterator[None]:
    if wanted:
        with Float64():
            yield
    else:
        yield


def _states(output: Any) -> list[Tensor]:
    return [state.double() for state in output.hidden_states]


def _cosines(states: list[Tensor], truth: list[Tensor]) -> list[float | None]:
    """Return a mean for each layer; None if a state is NaN."""
    means = [float(torch.cosine_similarity(a, b, dim=-1).mean()) for a, b in zip(states, truth, strict=True)]
    return [
        None if mean != mean or not bool(a.isfinite().all()) else mean
        for mean, a in zip(means, states, strict=True)
    ]


def one_head() -> dict[str, Any]:
    """Return the attention of one head of BERT-base with scaled weights, and in the limit."""
    import transformers as t

    torch.manual_seed(0)
    model = t.BertModel(t.BertConfig()).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(1000, 20000, (1, 12), generator=torch.Generator().manual_seed(1))
    found: dict[str, Any] = {}
    for c in (1, 3, 10, 100):
        with scaled_weights(model, c), torch.no_grad():
            found[f"c = {c}"] = model(input_ids=ids, output_attentions=True).attentions[0][0, 0].tolist()
    limit = saturated(model)(input_ids=ids, output_attentions=True)
    return found | {"limit": limit.attentions[0][0, 0].tolist()}


def main() -> None:
    import limit_pages

    if sys.argv[1:] != ["pages"]:
        results = {
            "versions": {"torch": torch.__version__, "transformers": version("transformers")},
            "head": one_head(),
            "models": [],
        }
        for name, make in models():
            print(name, flush=True)
            results["models"].append(differences(name, make))
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    limit_pages.write(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
