"""Conversations as examples, against what transformers makes of them by itself."""

import json

import pytest
import torch
from support.later import Later
from support.raising import raises

from fedcore.errors import ConfigurationError, DataError
from fedcore.training import OptimizerConfig, evaluate, local_engine, seeded
from fedcore.training.huggingface import CausalLM
from fedcore.training.language import ChatDataset, byte_tokenizer, chat_tokenizer, encode_chat, read_conversations
from fedcore.training.losses import IGNORED, token_cross_entropy
from fedcore.training.metrics import accuracy, perplexity

transformers = Later("transformers")

CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Leaves the reasoning out of all answers but the last, as Qwen3 does.
FORGETFUL = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{{ m['content'] if loop.last else m['content'].split('</think>')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "How are you, Zoë?"},
    {"role": "assistant", "content": "Well. Y tú?"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "Bye!"},
]


def chats(count=9):
    return [[{"role": "user", "content": "hi " * (n + 1)}, {"role": "assistant", "content": f"no. {n}" * (n % 4 + 1)},
             {"role": "user", "content": "more"}, {"role": "assistant", "content": "o" * (n + 1)}]
            for n in range(count)]  # fmt: skip


def tokenizer(template=None):
    made = chat_tokenizer("")
    made.chat_template = template or made.chat_template
    return made


def learnt(made, conversation):
    pairs = encode_chat(made, conversation)
    return [made.decode([token for token, own in zip(ids, mask, strict=True) if own]) for ids, mask in pairs]


def small(kind):
    """A random model of one of the architectures that people bring, over the bytes."""
    sizes = {"vocab_size": 259, "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip
    if kind == "GPT2":
        sizes = {"vocab_size": 259, "n_layer": 2, "n_embd": 32, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
                 "attn_pdrop": 0.0}  # fmt: skip
    if kind == "Mamba":
        sizes = {"vocab_size": 259, "num_hidden_layers": 2, "hidden_size": 32, "state_size": 4}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    class_name = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    with seeded(3):
        return getattr(transformers, class_name)(config).eval()


def engine_of(base):
    return local_engine(CausalLM(base), OptimizerConfig(), loss=token_cross_entropy)


def bare_losses(base, made, conversations):
    """The sum of the losses and the number of the assistant's tokens, by transformers' own loss, one at a time."""
    total, number = 0.0, 0
    for conversation in conversations:
        ((ids, mask),) = encode_chat(made, conversation)
        labels = torch.tensor([ids]).masked_fill(~torch.tensor([mask]), IGNORED)
        with torch.no_grad():
            loss = base(input_ids=torch.tensor([ids]), labels=labels).loss
        total, number = total + float(loss) * sum(mask), number + sum(mask)
    return total, number


@pytest.mark.parametrize("template", [None, CHATML])
def test_only_what_the_assistant_says_is_learnt(template):
    made = tokenizer(template)
    end = "<eos>" if template is None else "<|end|>"
    assert learnt(made, CHAT) == [f"Well. Y tú?{end}Bye!{end}"]
    ((ids, _),) = encode_chat(made, CHAT)
    assert ids == list(made.apply_chat_template(CHAT, return_dict=True)["input_ids"])


def test_a_template_that_forgets_reasoning_gives_an_example_for_each_answer():
    thinking = [*CHAT[:2], {"role": "assistant", "content": "<think>hm</think>Well."}, *CHAT[3:]]
    assert learnt(tokenizer(FORGETFUL), thinking) == ["<think>hm</think>Well.<|end|>", "Bye!<|end|>"]


def test_a_template_without_a_place_for_the_answer_is_refused():
    with raises(DataError, check="chat-template"):
        encode_chat(tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}{{ messages | length }}"), CHAT)


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Qwen3", "Mistral", "Gemma2"])
def test_loss_and_perplexity_are_those_of_bare_transformers_packed_or_not(kind):
    made, base, conversations = tokenizer(CHATML), small(kind), chats()
    total, number = bare_losses(base, made, conversations)
    engine = engine_of(base)
    for packing in (True, False):
        data = ChatDataset(conversations, made, window=320, packing=packing)
        assert (len(data) < len(conversations)) == packing
        result = evaluate(engine, data, metrics=(perplexity, accuracy))
        assert result.targets == number
        assert result.loss == pytest.approx(total / number, rel=1e-6)
        assert result.values["perplexity"] == pytest.approx(float(torch.tensor(total / number).exp()), rel=1e-5)


def test_the_gradient_of_packed_rows_is_that_of_transformers_own_loss_of_a_padded_batch():
    made, conversations = tokenizer(), chats()
    encoded = [encode_chat(made, one)[0] for one in conversations]
    longest = max(len(ids) for ids, _ in encoded)
    ids, labels, seen = (torch.zeros(len(encoded), longest, dtype=torch.int64) for _ in range(3))
    for row, (tokens, mask) in enumerate(encoded):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        seen[row, : len(tokens)] = 1
        labels[row] = IGNORED
        labels[row, : len(tokens)] = torch.where(torch.tensor(mask), torch.tensor(tokens), IGNORED)
    base = small("Llama")
    loss = base(input_ids=ids, attention_mask=seen, labels=labels).loss
    loss.backward()
    expected = [parameter.grad.clone() for parameter in base.parameters()]
    base.zero_grad()
    engine = engine_of(base)
    data = ChatDataset(conversations, made, window=320)
    (batch,) = engine.batches(data, batch_size=0, seed=0, epochs=1)
    mean = float(engine.backward(batch)) / batch.total
    assert mean == pytest.approx(loss.item(), rel=1e-6)
    for parameter, gradient in zip(base.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("micro_batches", [2, 5])
def test_micro_batches_weigh_targets_like_the_whole_batch(micro_batches):
    from fedcore.training import EngineConfig, Recipe, World, make_engine

    data = ChatDataset(chats(), tokenizer(), window=96, packing=False)
    gradients = []
    for count in (1, micro_batches):
        base = small("Llama")
        recipe = Recipe(build=lambda base=base: CausalLM(base), optimizer=OptimizerConfig(), loss=token_cross_entropy)
        engine = make_engine(recipe, EngineConfig(micro_batches=count), World())
        (batch,) = engine.batches(data, batch_size=0, seed=0, epochs=1)
        engine.backward(batch)
        gradients.append([parameter.grad for parameter in base.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_model_that_reads_across_texts_is_not_given_packed_rows():
    made, base = tokenizer(), small("Mamba")
    evaluate(engine_of(base), ChatDataset(chats(3), made, window=400, packing=False), metrics=())
    with raises(ConfigurationError, check="packing"):
        evaluate(engine_of(base), ChatDataset(chats(3), made, window=400), metrics=())


def test_long_conversations_are_cut_and_those_without_an_answer_left_out():
    made = tokenizer()
    long = [{"role": "user", "content": "x" * 200}, {"role": "assistant", "content": "y"}]
    data = ChatDataset([*chats(3), long], made, window=100)
    assert data.left_out == 1
    assert all(len(data[row]["tokens"]) <= 100 for row in range(len(data)))
    with raises(DataError, check="window-too-short"):
        ChatDataset([long], made, window=100)


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"prompt": "a", "completion": "b"},
        {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]},
        {"instruction": "a", "input": "", "output": "b"},
        {"instruction": "a", "response": "b"},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    ],
)
def test_records_as_people_have_them(tmp_path, record):
    expected = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]] * 2
    lines, whole = tmp_path / "chats.jsonl", tmp_path / "chats.json"
    lines.write_text(f"{json.dumps(record)}\n\n{json.dumps(record)}\n")
    whole.write_text(json.dumps([record, record]))
    assert read_conversations(lines) == read_conversations(whole) == expected


@pytest.mark.parametrize(
    "record",
    [
        [1],
        {"text": "a"},
        {"messages": "a"},
        {"messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "a"}]}]},
    ],
)
def test_a_record_that_is_no_chat_is_named(tmp_path, record):
    path = tmp_path / "chats.jsonl"
    path.write_text(f'{{"prompt": "a", "completion": "b"}}\n{json.dumps(record)}\n')
    with raises(DataError, check="no-chat", match="record 2"):
        read_conversations(path)


def test_the_byte_tokenizer_loses_nothing():
    made = byte_tokenizer()
    text = "naïve 你好\n\t<x>  end "
    assert made.decode(made(text, add_special_tokens=False)["input_ids"]) == text
