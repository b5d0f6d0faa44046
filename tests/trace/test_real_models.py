"""Real architectures, saved as their own library saves them, in every format; and T5-base at full size."""

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from transformers.utils import logging

from normgrowth import trace

SMALL = {
    "bert": lambda: transformers.BertModel(
        transformers.BertConfig(
            hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48
        )
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=99, n_embd=32, n_layer=3, n_head=4, bos_token_id=None, eos_token_id=None
        )
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=48,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).to(torch.bfloat16),
}


@pytest.fixture(autouse=True)
def quiet():
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("architecture", SMALL)
def test_every_format_gives_the_same_bits(tmp_path, architecture):
    torch.manual_seed(0)
    model = SMALL[architecture]()
    writers = {
        "shards": lambda folder: model.save_pretrained(folder, max_shard_size="40KB"),
        "one": lambda folder: model.save_pretrained(folder),
        "pickle": lambda folder: torch.save(
            {"model": model.state_dict(), "optimizer": {}}, folder.with_suffix(".pt")
        ),
        "distributed": lambda folder: dcp.save(model.state_dict(), checkpoint_id=folder, no_dist=True),
    }
    for step in range(3):
        for format, write in writers.items():
            (tmp_path / format).mkdir(exist_ok=True)
            write(tmp_path / format / f"checkpoint-{step}")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
    assert len(list((tmp_path / "shards" / "checkpoint-0").glob("*-of-*.safetensors"))) > 1
    traces = {format: trace(tmp_path / format, run="x").records for format in writers}
    layers = 6 if architecture == "t5" else 3
    for format, records in traces.items():
        assert len(records.where(level="layer").distinct("name")) == layers, format
        for level in ("model", "layer", "role", "tensor"):
            for name in traces["one"].where(level=level).distinct("name"):
                for quantity, *to in (("norm",), ("cosine",), ("alignment",), ("cosine", "first")):
                    wanted = {"level": level, "name": name, "reference": to[0] if to else None}
                    one = traces["one"].series(quantity, **wanted)[1]
                    other = records.series(quantity, **wanted)[1]
                    # Tensors are stored in another order, so sums over several may round differently.
                    tolerance = 0 if level == "tensor" else 1e-12
                    np.testing.assert_allclose(
                        other, one, rtol=tolerance, err_msg=f"{format} {quantity} {name}"
                    )


@pytest.mark.slow
def test_t5_base_starts_where_the_papers_figure_does(tmp_path):
    """Figure 1 starts at 470.6 (both stacks) and 87.8 (an encoder layer); its appendix says encoder only."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=32128,
        d_model=768,
        d_kv=64,
        d_ff=3072,
        num_layers=12,
        num_heads=12,
        feed_forward_proj="relu",
    )
    model = transformers.T5ForConditionalGeneration(config)
    for step in (0, 1):
        model.save_pretrained(tmp_path / f"step_{step}")
    records = trace(tmp_path, lint=False).records  # one model under two names, on purpose
    assert records.series("norm")[1][0] == pytest.approx(470.6, abs=0.5)
    for i in range(12):
        assert records.series("norm", level="layer", name=f"encoder.{i}")[1][0] == pytest.approx(
            87.8, abs=0.2
        )
        assert records.series("norm", level="layer", name=f"decoder.{i}")[1][0] == pytest.approx(
            103.8, abs=0.2
        )
    assert trace(tmp_path, include="encoder", lint=False).records.series("norm")[1][0] == pytest.approx(
        303.8, abs=0.5
    )
