"""Adapters on a tiny base, against PEFT by itself: their training, their mean and their files."""

import copy
import importlib.util

import pytest
import torch
from support.later import Later
from support.raising import raises

import fedcore
from fedcore import OptimizerConfig, averaging_server, supervised_app
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.training import evaluate, local_engine, train
from fedcore.training.language import ChatDataset, chat_tokenizer, encode_chat, load_base, save_peft, with_adapter
from fedcore.training.losses import IGNORED, token_cross_entropy
from fedcore.training.metrics import perplexity
from fedcore.training.shared_tensors import adapter_names

peft = Later("peft")

RANK, ALPHA = 4, 8.0


def chats(site=0, count=6):
    turns = ([("user", f"site {site} asks {n}"), ("assistant", "yes " * (n + 1 + site))] for n in range(count))
    return [[{"role": role, "content": content} for role, content in chat] for chat in turns]


def data(site=0):
    return ChatDataset(chats(site), chat_tokenizer(""), window=96, packing=False)


def model(kind="lora", **options):
    return with_adapter(load_base("", seed=1, **options), kind, rank=RANK, alpha=ALPHA, seed=2)


def trained(kind="lora", site=0, lr=0.01, **options):
    engine = local_engine(model(kind, **options), OptimizerConfig(name="adamw", lr=lr), loss=token_cross_entropy)
    train(engine, data(site), batch_size=0, steps=3, seed=0)
    return engine.module


def adapter(module):
    return {name: module.get_parameter(name).detach().clone() for name in adapter_names(module)}


def updates(module):
    """What the adapter adds to each weight, by PEFT's own account."""
    layers = [layer for layer in module.modules() if isinstance(layer, peft.tuners.lora.LoraLayer)]
    return [layer.get_delta_weight("default").detach().double() for layer in layers]


def averaged(modules):
    """A model with the mean of the adapters, as a federation makes it."""
    mean = copy.deepcopy(modules[0])
    adapters = [adapter(one) for one in modules]
    for name in adapters[0]:
        mean.get_parameter(name).data = torch.stack([one[name].double() for one in adapters]).mean(0).float()
    return mean


def distance(one, other):
    """Of all updates together, relative to the other."""
    off = sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True))
    return (off / sum(float(b.square().sum()) for b in other)) ** 0.5


def mean_updates(modules):
    return [torch.stack(layer).mean(0) for layer in zip(*map(updates, modules), strict=True)]


def bare_steps(transformer, steps, lr):
    """Full batches of site 0 with transformers' own loss and torch's AdamW."""
    encoded = [encode_chat(chat_tokenizer(""), one)[0] for one in chats()]
    longest = max(len(ids) for ids, _ in encoded)
    ids, seen = (torch.zeros(len(encoded), longest, dtype=torch.int64) for _ in range(2))
    labels = torch.full_like(ids, IGNORED)
    for row, (tokens, mask) in enumerate(encoded):
        ids[row, : len(tokens)], seen[row, : len(tokens)] = torch.tensor(tokens), 1
        labels[row, : len(tokens)] = torch.where(torch.tensor(mask), torch.tensor(tokens), IGNORED)
    optimizer = torch.optim.AdamW([p for p in transformer.parameters() if p.requires_grad], lr=lr, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = transformer(input_ids=ids, attention_mask=seen, labels=labels).loss
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["lora", "sb"])
def test_the_model_starts_as_its_base_and_the_seed_decides_the_adapter(kind):
    tokens = torch.arange(24).reshape(2, 12)
    base = load_base("", seed=1)
    expected = base(input_ids=tokens).logits.detach()
    one, other = with_adapter(base, kind, rank=RANK, alpha=ALPHA, seed=2), model(kind)
    assert torch.equal(one(tokens), expected)
    assert all(torch.equal(one.state_dict()[name], tensor) for name, tensor in other.state_dict().items())


def test_fed_sb_sends_a_small_matrix_for_each_layer():
    sent = adapter(model("sb"))
    assert len(sent) == 14
    assert {tensor.shape for tensor in sent.values()} == {(RANK, RANK)}


def test_the_fixed_matrices_are_the_singular_vectors_of_the_base():
    module = trained("sb")
    layer = module.transformer.base_model.model.model.layers[0].mlp.up_proj
    up, down = layer.lora_B["default"].up.double(), layer.lora_A["default"].weight.double()
    left, _, right = torch.linalg.svd(layer.get_base_layer().weight.double())
    assert torch.allclose((up.T @ left[:, :RANK]).abs(), torch.eye(RANK, dtype=torch.float64), atol=1e-3)
    assert torch.allclose((down @ right[:RANK].T).abs(), torch.eye(RANK, dtype=torch.float64), atol=1e-3)


def test_the_mean_of_fed_sb_is_the_mean_of_the_updates_and_that_of_lora_is_not():
    exact, apart = ([trained(kind, site, lr=0.03) for site in range(3)] for kind in ("sb", "lora"))
    assert distance(updates(averaged(exact)), mean_updates(exact)) < 1e-6
    assert distance(updates(averaged(apart)), mean_updates(apart)) > 1e-2


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT reads it
@pytest.mark.parametrize("kind", ["lora", "sb"])
def test_peft_loads_what_is_saved(kind, tmp_path):
    module = trained(kind)
    save_peft(module, tmp_path)
    loaded = peft.PeftModel.from_pretrained(load_base("", seed=1), str(tmp_path)).eval()
    tokens = torch.arange(24).reshape(2, 12)
    assert torch.allclose(loaded(input_ids=tokens).logits, module.eval()(tokens), atol=1e-6)
    merged = loaded.merge_and_unload()
    assert torch.allclose(merged(input_ids=tokens).logits, module(tokens), atol=1e-5)


def test_a_secure_round_of_one_site_trains_as_peft_does_by_itself():
    """Two sites with the same conversations, since a sum needs two: their mean is what either trains."""
    config = {"num-server-rounds": 1, "batch-size": 0, "local-epochs": 3, "seed": 0}
    app = supervised_app(
        model=lambda config: model(),
        optimizer=lambda config: OptimizerConfig(name="adamw", lr=0.01),
        data=lambda job: (data(), data()),
        loss=token_cross_entropy,
        metrics=(perplexity,),
        weigh="targets",
        adapter=True,
    )
    bare = model().transformer
    start = adapter(model())
    bare_steps(bare, 3, 0.01)
    expected = {f"transformer.{name}": p.detach() for name, p in bare.named_parameters() if p.requires_grad}
    size = max(float((expected[name] - start[name]).abs().max()) for name in start)
    for aggregation, clients, bound in (("plain", 1, 1e-4), ("secure", 2, 1e-2)):
        run = fedcore.simulate(
            (app, averaging_server(app)), clients=clients, aggregation=aggregation, run_config=config, progress=False
        )
        off = max(float((torch.tensor(run.model[name]) - expected[name]).abs().max()) for name in expected)
        assert off < bound * size


@pytest.mark.parametrize("kind", ["lora", "sb"])
def test_checkpointing_trains_the_same(kind):
    plain, checkpointed = adapter(trained(kind)), adapter(trained(kind, checkpointing=True))
    assert all(torch.allclose(plain[name], checkpointed[name], atol=1e-6) for name in plain)


@pytest.mark.parametrize("kind", ["lora", "sb"])
def test_a_base_of_16_bits_has_an_adapter_of_32(kind):
    module = trained(kind, bits=16)
    assert {tensor.dtype for tensor in adapter(module).values()} == {torch.float32}
    assert module.transformer.get_input_embeddings().weight.dtype == torch.bfloat16
    engine = local_engine(module, OptimizerConfig(), loss=token_cross_entropy)
    begun = local_engine(model(kind, bits=16), OptimizerConfig(), loss=token_cross_entropy)
    assert evaluate(engine, data(), metrics=()).loss < evaluate(begun, data(), metrics=()).loss


@pytest.fixture
def folder(tmp_path):
    """The tiny model as a base of one's own."""
    load_base("", seed=1).save_pretrained(tmp_path)
    return str(tmp_path)


def in_4_bits(folder, kind="lora"):
    return with_adapter(load_base(folder, bits=4), kind, rank=RANK, alpha=ALPHA, seed=2)


HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None


@pytest.mark.skipif(HAS_BITSANDBYTES, reason="is about machines without bitsandbytes")
def test_4_bits_need_bitsandbytes_but_a_server_without_it_has_the_adapter(folder):
    module = in_4_bits(folder)
    assert all(torch.equal(tensor, adapter(model())[name]) for name, tensor in adapter(module).items())
    with raises(ConfigurationError, check="base-bits", match="bitsandbytes"):
        module(torch.zeros(1, 4, dtype=torch.int64))


@pytest.mark.skipif(not HAS_BITSANDBYTES, reason="needs bitsandbytes: pip install bitsandbytes")
@pytest.mark.parametrize("kind", ["lora", "sb"])
def test_a_base_of_4_bits_trains_near_one_of_32(folder, kind):
    module = in_4_bits(folder, kind)
    assert all(torch.equal(tensor, adapter(model(kind))[name]) for name, tensor in adapter(module).items())
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        assert distance([module(tokens).double()], [model(kind)(tokens).double()]) < 0.3
    assert torch.uint8 in {parameter.dtype for parameter in module.parameters()}
    engine = local_engine(module, OptimizerConfig(name="adamw", lr=0.01), loss=token_cross_entropy)
    before = evaluate(engine, data(), metrics=()).loss
    train(engine, data(), batch_size=0, steps=3, seed=0)
    assert evaluate(engine, data(), metrics=()).loss < before


def test_the_tiny_model_has_no_4_bits():
    with raises(ConfigurationError, check="base-bits", match="base-model"):
        model(bits=4)(torch.zeros(1, 4, dtype=torch.int64))


def test_what_cannot_be_is_refused(tmp_path):
    with raises(ConfigurationError, check="base-bits"):
        load_base("", bits=8)
    with raises(UnknownKey):
        with_adapter(load_base(""), "lore", rank=2, alpha=2.0)
    with raises(ConfigurationError, check="adapter-rank"):
        with_adapter(load_base(""), "sb", rank=33, alpha=2.0)
    with raises(ConfigurationError, check="no-adapter"):
        save_peft(torch.nn.Linear(2, 2), tmp_path)
