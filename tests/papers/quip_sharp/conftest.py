"""Tiny models that the tests of whole-model quantisation share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors on two threads are ten times slower where another process has one of the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama():
    """Builds a 2-layer LlamaForCausalLM with grouped queries; keyword arguments change its config."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def build(seed: int = 0, **changes):
        settings = {
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 2,
            "max_position_embeddings": 32,
            "tie_word_embeddings": True,
            "initializer_range": 0.3,  # so that attention and logits are far from uniform
        }
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()

    return build


@pytest.fixture(scope="session")
def tokens():
    return torch.randint(0, 64, (12, 16), generator=torch.Generator().manual_seed(0))
