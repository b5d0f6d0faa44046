"""Make docs/saturation.md: measure saturation levels, scaling curves, and the cost of measuring.

python benchmarks/levels.py PART ... --text brown.txt     measure; store records in docs/records/
python benchmarks/levels.py pages                         make pictures and tables from the records

Parts: figure2 (random base models), t5 (its initial weights), forms (a random T5 by stack, input and mode), minilm
(trained), figure4 (the paper's encoders), training (a model trained here, over its checkpoints), time. Without a part,
all of them.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from normgrowth import Records, saturated, saturation, scaled_weights, scaling
from normgrowth.engine import Threads
from normgrowth.network.hidden_states import Network, evaluating, measured_part
from normgrowth.network.inputs.batches import make_batches
from normgrowth.network.inputs.tokenized_text import read_rows
from normgrowth.network.models.load import LoadedModel, load_model
from normgrowth.network.saturation.result import Saturation
from normgrowth.network.scaling.curves import paper_configs
from normgrowth.network.scaling.result import joined_scalings
from normgrowth.paper.stages.figure2_forms import FIGURE2_FORMS, figure2_forms
from normgrowth.paper.stages.stage import StageContext
from normgrowth.records import Block

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "records"
SEEDS = 3
WORDS, STEPS = 4000, 2048  # of the model trained here
T5_FACTORS = (0.25, 0.5, 1.0, 1.25, 1.5, 2.0)


def base_models() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield the paper's four models with their base configurations and random weights."""
    import transformers as t

    t5: dict[str, Any] = {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072}
    xlnet: dict[str, Any] = {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}
    roberta: dict[str, Any] = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    yield "bert-base-cased", lambda: t.BertModel(t.BertConfig(vocab_size=28996))
    yield "roberta-base", lambda: t.RobertaModel(t.RobertaConfig(**roberta))
    yield "t5-base", lambda: t.T5EncoderModel(t.T5Config(**t5))
    yield "xlnet-base-cased", lambda: t.XLNetModel(t.XLNetConfig(**xlnet))


def built(name: str, make: Callable[[], nn.Module], seed: int = 0) -> LoadedModel:
    torch.manual_seed(seed)
    return LoadedModel(name, make().eval(), random=True)


def figure2(text: str | None) -> None:
    import pyarrow.compute as pc

    parts: list[Saturation] = []
    for name, make in base_models():
        result = saturation(built(name, make), text, random_init=SEEDS, progress=_say)
        # The model itself is one more random network: the mean over seeds is used.
        quantity = result.records.table["quantity"].cast("string")
        wanted = pc.or_(  # pyright: ignore[reportAttributeAccessIssue]
            pc.match_substring(quantity, "_random"),  # pyright: ignore[reportAttributeAccessIssue]
            pc.match_substring_regex(quantity, "^(tokens|sentences)$"),  # pyright: ignore[reportAttributeAccessIssue]
        )
        parts.append(replace(result, source="", records=Records(result.records.table.filter(wanted))))
        _joined(parts).write(KEPT / "figure2")


def t5(text: str | None) -> None:
    """Measure how the level of a random T5 depends on a factor on all initial weights."""
    import transformers as t

    parts: list[Saturation] = []
    for factor in T5_FACTORS:
        config = t.T5Config(d_model=768, num_layers=12, num_heads=12, d_ff=3072, initializer_factor=factor)
        loaded = built("t5-base", lambda config=config: t.T5EncoderModel(config))
        run = f"factor {factor:g}"
        result = saturation(loaded, text, sentences=30, exact=False, run=run, progress=_say)
        parts.append(result)
        _joined(parts).write(KEPT / "t5_initialization")


def forms(_: str | None) -> None:
    """Measure a random T5-base in each form in which Figure 2 may have been measured, as `reproduce --scale paper`."""
    with tempfile.TemporaryDirectory() as folder, closing(Threads(1)) as engine:
        context = StageContext(Path(folder), engine, progress=_say)
        figure2_forms(context, FIGURE2_FORMS.settings["paper"]).write(KEPT / "figure2_forms")


def minilm(text: str | None) -> None:
    result = saturation(load_model("minilm"), text, random_init=SEEDS, progress=_say)
    _joined([result]).write(KEPT / "minilm")


def figure4(_: str | None) -> None:
    parts = []
    for config in paper_configs():
        parts.append(scaling(config, seeds=range(SEEDS), progress=_say))
        joined_scalings(parts).write(KEPT / "figure4")


def training(text: str | None) -> None:
    """Train a GPT-2 of four layers on Python's documentation, with checkpoints at powers of two, and measure it."""
    from collections import Counter
    from pydoc_data.topics import topics

    import transformers as t
    from safetensors.torch import save_file

    words = " ".join(topics[topic] for topic in sorted(topics)).split()
    number = {word: i + 1 for i, (word, _) in enumerate(Counter(words).most_common(WORDS - 1))}
    ids = torch.tensor([number.get(word, 0) for word in words])
    seen, held = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]
    config = t.GPT2Config(vocab_size=WORDS, n_positions=128, n_embd=128, n_layer=4, n_head=4)
    config.bos_token_id = config.eos_token_id = None
    torch.manual_seed(0)
    model = t.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses: dict[int, float] = {}

    def loss(of: torch.Tensor, rows: int) -> torch.Tensor:
        start = torch.randint(len(of) - 64, (rows,))
        batch = torch.stack([of[s : s + 64] for s in start])
        return model(input_ids=batch, labels=batch).loss

    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS + 1):
            if step == 0 or step.bit_count() == 1:
                model.eval()
                with torch.no_grad():
                    losses[step] = loss(held, 64).item()
                model.train()
                _say(step, STEPS, f"training, loss of text held out {losses[step]:.3f}")
                state = {name: p.detach().clone() for name, p in model.named_parameters()}
                save_file(state, Path(folder) / f"step_{step}.safetensors")
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * min(1.0, (step + 1) / 100)
            optimizer.zero_grad()
            loss(seen, 16).backward()
            optimizer.step()
        run = "gpt2, 4 layers, trained here"
        result = saturation(folder, text, config=t.GPT2Model(config), run=run, progress=_say)
    records = result.records
    values = {"loss": np.array([[losses[step]] for step in losses])}
    block = Block("model", ["model"], [None], [None], list(losses), values)
    parts = [records.where(level="layer"), records.where(level="model"), Records.from_blocks(run, [block])]
    made = replace(
        _joined([result]), records=Records.joined(parts), source="a run of benchmarks/levels.py", config=""
    )
    made.write(KEPT / "training")


def cost(text: str | None) -> None:
    """Time the measurement of a base model on 100 sentences, its passes alone, and one sentence at a time."""
    name, make = next(base_models())
    loaded = built(name, make)
    model = loaded.model
    rows = read_rows(model, text)
    batches = make_batches(rows, model, 2048)
    network = Network(measured_part(model, None), None)
    limit = saturated(network)

    def plain() -> None:
        for batch in batches:
            network(batch.inputs)

    def exact() -> None:
        for batch in batches:
            limit(batch.inputs)

    def scaled() -> None:
        with scaled_weights(network, 1000):
            for batch in batches:
                network(batch.inputs)

    whole, one = [], []
    passes: dict[str, list[float]] = {"plain": [], "exact": [], "scaled": []}
    for _round in range(3):
        whole.append(_timed(lambda: saturation(loaded, text)))
        with evaluating(network):
            for what, run in (("plain", plain), ("exact", exact), ("scaled", scaled)):
                passes[what].append(_timed(run))
        one.append(_timed(lambda: saturation(loaded, text, batch_tokens=1)))
        _say(_round + 1, 3, "time")
    total = [sum(each) for each in zip(*passes.values(), strict=True)]
    found = {
        "model": name,
        "sentences": len(rows.rows),
        "tokens": sum(len(row["input_ids"]) for row in rows.rows),
        "batches": len(batches),
        "of the passes": statistics.median(a / b for a, b in zip(whole, total, strict=True)),
        "one at a time": statistics.median(a / b for a, b in zip(one, whole, strict=True)),
        "seconds": {"whole": whole, **passes, "one at a time": one},
    }
    (KEPT / "levels_cost.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _joined(parts: Sequence[Saturation]) -> Saturation:
    """The levels of several models as one result, without the local path of the text."""
    models = {run: known for part in parts for run, known in part.models.items()}
    for run, known in models.items():
        file, comma, more = known.text.source.partition(",")
        models[run] = replace(known, text=replace(known.text, source=f"{Path(file).name}{comma}{more}"))
    return replace(parts[-1], records=Records.joined([part.records for part in parts]), models=models)


def _say(done: int, total: int, label: str) -> None:
    print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)


PARTS = {
    "figure2": figure2,
    "t5": t5,
    "forms": forms,
    "minilm": minilm,
    "figure4": figure4,
    "training": training,
    "time": cost,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", choices=[*PARTS, "pages"], help="default: all")
    parser.add_argument("--text", help="one sentence a line, such as the Brown corpus")
    arguments = parser.parse_args()
    for part in arguments.part or PARTS:
        if part != "pages":
            PARTS[part](arguments.text)
    from levels_pages import write

    write(KEPT)


if __name__ == "__main__":
    main()
