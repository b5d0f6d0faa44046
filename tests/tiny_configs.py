"""Configs of real architectures, three layers of 32, for tests that need a whole network."""

from typing import Any

BLOCKS = 3


def tiny_config(name: str) -> Any:
    import transformers

    usual: dict[str, Any] = dict(
        hidden_size=32,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=99,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    tokens = dict(bos_token_id=1, eos_token_id=2, vocab_size=99)
    return {
        "bert": lambda: transformers.BertConfig(**usual),
        "llama": lambda: transformers.LlamaConfig(**usual),
        "olmo2": lambda: transformers.Olmo2Config(**usual),
        "gpt2": lambda: transformers.GPT2Config(
            n_embd=32, n_layer=BLOCKS, n_head=4, n_positions=64, **tokens
        ),
        "t5": lambda: transformers.T5Config(
            d_model=32, d_kv=8, d_ff=64, num_layers=BLOCKS, num_heads=4, vocab_size=99
        ),
        "vit": lambda: transformers.ViTConfig(
            hidden_size=32,
            num_hidden_layers=BLOCKS,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=16,
            patch_size=4,
        ),
    }[name]()
