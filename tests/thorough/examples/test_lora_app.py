"""examples/lora: a whole secure run in memory in which nothing but the adapter travels."""

import copy

import pytest
import torch
from flwr.app import ArrayRecord
from support.events import told

from fedcore.codec.encoding import MOST_DIGITS, SMALL_TENSOR
from fedcore.codec.names import NAMES_BYTES
from fedcore.federation import Policy
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.system.assignments import override
from fedcore.training import evaluate, local_engine
from fedcore.training.shared_tensors import adapter_names
from tests.thorough.examples.flower_messages import EXAMPLES, app_modules, context, message, run_config

# Rank 8 beside the seven linear layers of each of two blocks, and the model that they belong to.
ADAPTER_PARAMETERS = 2 * 8 * (4 * 64 + 4 * 64 - 2 * 32 + 3 * (64 + 128))
BASE_PARAMETERS = 106_816


@pytest.fixture(autouse=True)
def real_data(data_dir, monkeypatch):
    monkeypatch.setenv("FEDCORE_DATA", str(data_dir))


def adapter_state(model):
    """The adapter's tensors by name; they share the model's memory."""
    return {name: model.get_parameter(name).detach() for name in adapter_names(model)}


def simulated(clients, **changes):
    """The final state and the exchanges of a run of the app with its own settings."""
    app = FlowerApp.load(EXAMPLES / "lora")
    exchanges = []
    outcome = Simulation(
        app=app,
        clients=clients,
        run_config=override(app.run_config, {k.replace("_", "-"): v for k, v in changes.items()}, "test"),
        settings=JobSettings.from_mapping({**app.settings.to_mapping(), "max-corrupt": 0.0}),
        policy=Policy.own(clients, min_corrupt=0.0),  # three of three hundred, of whom one in twenty might collude
        emit=lambda event: exchanges.append(told(event)) if event.kind == "exchange-done" else None,
    ).run()
    return outcome.state, exchanges


def test_a_secure_run_lowers_the_loss_and_moves_the_adapter_alone():
    with app_modules("lora") as (task, client, _):
        config = run_config("lora")
        model = task.initial_model(config)
        start = {name: tensor.clone() for name, tensor in adapter_state(model).items()}
        base = {name: tensor.clone() for name, tensor in model.named_parameters() if name not in start}
        state, exchanges = simulated(300, num_server_rounds=3, fraction_train=0.01, fraction_evaluate=0.01)
        # Text that no client of this run has trained on: the test parts of a few roles.
        _, held_out = task.local_data(config, 7, 300)

    assert [spec.name for spec in state.layout.specs] == list(start)
    assert all(".lora_A." in name or ".lora_B." in name for name in start)
    assert state.layout.nbytes == 4 * ADAPTER_PARAMETERS
    trainings = [exchange for exchange in exchanges if exchange["message_type"] == "train"]
    # The first exchange takes 32 bits a parameter, and has room for metrics and their names. Those after it take 16.
    # Small tensors take 96 in all of them; a little is for the metrics.
    small = sum(spec.size for spec in state.layout.specs if spec.size < SMALL_TENSOR)
    unnamed = 8 * (NAMES_BYTES // 4 + JobSettings().max_metrics + MOST_DIGITS)
    first = 4 * (ADAPTER_PARAMETERS - small) + 12 * small + unnamed
    later = 2 * (ADAPTER_PARAMETERS - small) + 12 * small
    for exchange, size in zip(trainings, (first, later, later), strict=True):
        assert len(exchange["survivors"]) == 3
        assert set(exchange["bytes_down"].values()) == {4 * ADAPTER_PARAMETERS}
        assert size < max(exchange["bytes_up"].values()) < size + 1000 < 4 * BASE_PARAMETERS

    # Every client of the simulation trained on this one engine: the frozen part of its model is what it was.
    now = dict(client.app.engine.module.named_parameters())
    assert sum(p.numel() for p in base.values()) == BASE_PARAMETERS
    assert all(torch.equal(now[name], tensor) for name, tensor in base.items())
    model.load_state_dict(start, strict=False)
    before = evaluate(local_engine(model), held_out)
    model.load_state_dict({name: torch.tensor(array) for name, array in state.items()}, strict=False)
    after = evaluate(local_engine(model), held_out)
    # Equal chances for 256 bytes cost ln 256 = 5.55.
    assert before.loss == pytest.approx(5.55, abs=0.05)
    assert after.loss < before.loss - 0.3
    assert after.accuracy > before.accuracy + 0.1


def test_a_model_and_a_tokenizer_from_a_folder(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["To be, or not to be, that is the question:\n"] * 10, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.save_pretrained(tmp_path)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(fast),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    ).save_pretrained(tmp_path)
    config = run_config("lora", base_model=str(tmp_path), rank=2, window=16)
    node = context(config, 5, 1160)
    with app_modules("lora") as (task, client, _):
        train, _ = task.local_data(config, 5, 1160)
        sent = ArrayRecord(copy.deepcopy(adapter_state(task.initial_model(config))))
        reply = client.app(message("train", sent, 1, 6), node).content
    assert train.x.shape[1] == 16
    # Byte pairs that were merged have numbers behind the 256 bytes.
    assert 256 <= train.x.max() < len(fast)
    assert list(reply["arrays"]) == list(sent)
    assert reply["metrics"]["num-examples"] == len(train)
