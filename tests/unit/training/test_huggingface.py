"""A tiny randomly initialised Llama with LoRA: no download, no report, and the adapter alone trains."""

import importlib
import os
import sys

import huggingface_hub.constants
import pytest
import torch
from support.raising import raises

import fedcore.training
from fedcore.errors import ConfigurationError
from fedcore.training import seeded
from fedcore.training.huggingface import load_pretrained, load_tokenizer, with_lora
from fedcore.training.losses import cross_entropy
from fedcore.training.shared_tensors import adapter_names, freeze_all_but

LINEAR_LAYERS = 2 * 7
MODULE = "fedcore.training.huggingface"
OFF = "HF_HUB_DISABLE_TELEMETRY"


def tiny():
    from transformers import LlamaConfig, LlamaForCausalLM

    with seeded(0):
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=40,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
        ).eval()


@pytest.fixture
def tokens():
    return torch.randint(40, (3, 12), generator=torch.Generator().manual_seed(0))


def imported_again(monkeypatch):
    """Run the module's code in a process that has imported all that it builds on; afterwards the first one is back."""
    monkeypatch.setattr(fedcore.training, "huggingface", sys.modules[MODULE])
    monkeypatch.delitem(sys.modules, MODULE)
    importlib.import_module(MODULE)


def test_telemetry_is_off_whatever_was_imported_first(monkeypatch):
    monkeypatch.setenv(OFF, "0")
    monkeypatch.setattr(huggingface_hub.constants, OFF, False)
    imported_again(monkeypatch)
    assert huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY is True
    assert os.environ[OFF] == "1"


def test_lora_starts_as_the_base_and_reads_forward_only(tokens):
    base = tiny()
    expected = base(input_ids=tokens).logits.detach()
    model = with_lora(base, rank=4, alpha=8).eval()
    logits = model(tokens)
    assert logits.shape == (3, 12, 40)
    assert torch.equal(logits, expected)
    changed = tokens.clone()
    changed[:, 7] = (tokens[:, 7] + 1) % 40
    assert torch.equal(model(changed)[:, :7], logits[:, :7])


def test_every_linear_layer_but_the_last_has_two_matrices():
    names = adapter_names(with_lora(tiny(), rank=4, alpha=8))
    assert len(names) == 2 * LINEAR_LAYERS
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert not any("lm_head" in name or "embed" in name for name in names)


def test_half_of_the_adapter_can_be_frozen_too():
    model = with_lora(tiny(), rank=4, alpha=8)
    names = freeze_all_but(model, ["*.lora_B.*"])
    assert len(names) == LINEAR_LAYERS
    assert all(".lora_B." in name for name in names)


def test_targets_name_the_layers():
    names = adapter_names(with_lora(tiny(), rank=4, alpha=8, targets=["q_proj", "v_proj"]))
    assert len(names) == 2 * 2 * 2


def test_the_slope_along_a_random_direction_of_the_adapter(tokens):
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    # Another architecture, since Llama's normalisation rounds to float32 whatever the model's dtype.
    config = GPTNeoXConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    with seeded(0):
        model = with_lora(GPTNeoXForCausalLM(config), rank=4, alpha=8).double().eval()
    adapter = [p for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(1)
    # Away from the start, where B is zero and so is the gradient of A.
    with torch.no_grad():
        for parameter in adapter:
            parameter.normal_(std=0.2, generator=generator)
    cross_entropy(model(tokens), tokens.roll(-1, dims=1)).mean().backward()
    directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in adapter]
    slope = sum((p.grad * d).sum() for p, d in zip(adapter, directions, strict=True))

    @torch.no_grad()
    def loss_after(distance):
        torch._foreach_add_(adapter, directions, alpha=distance)
        return cross_entropy(model(tokens), tokens.roll(-1, dims=1)).mean()

    step = 1e-6
    above, below = loss_after(step), loss_after(-2 * step)
    torch.testing.assert_close((above - below) / (2 * step), slope, rtol=1e-6, atol=1e-9)


def test_a_saved_model_and_its_tokenizer_are_read_from_a_folder(tmp_path, tokens):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"to": 0, "be": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(tmp_path)
    base = tiny()
    base.save_pretrained(tmp_path)
    again = load_pretrained(str(tmp_path)).eval()
    assert again.dtype == torch.float32
    assert torch.equal(again(input_ids=tokens).logits, base(input_ids=tokens).logits)
    assert load_tokenizer(str(tmp_path))("to be to fly")["input_ids"] == [0, 1, 0, 2]


def test_a_folder_without_a_model_is_refused(tmp_path):
    with raises(ConfigurationError, check="no-language-model"):
        load_pretrained(str(tmp_path))
    with raises(ConfigurationError, check="no-tokenizer"):
        load_tokenizer(str(tmp_path / "absent"))


def test_pickled_weights_are_refused(tmp_path):
    base = tiny()
    base.config.save_pretrained(tmp_path)
    torch.save(base.state_dict(), tmp_path / "pytorch_model.bin")
    with raises(ConfigurationError, check="no-language-model"):
        load_pretrained(str(tmp_path))


def test_a_rank_that_means_nothing_is_refused():
    with pytest.raises(ConfigurationError, match=r"LoRA.*\b0\b"):
        with_lora(tiny(), rank=0, alpha=8)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigurationError, match=r"peft.*fedcore\[huggingface\]"):
        imported_again(monkeypatch)
