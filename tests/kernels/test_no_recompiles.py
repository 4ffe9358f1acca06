"""What runs on compiles nothing: a generation with a static cache after its first tokens, and training whose learning
rate changes at every step."""
import copy

import pytest
import torch

import neuron_eager
from neuron_eager import opcache

transformers = pytest.importorskip("transformers")


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """An empty cache, in memory and on disk: every object that is needed counts as a compile."""
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path))
    opcache.forget()


def tiny_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.slow       # transformers takes seconds to import
def test_generate_with_a_static_cache_stops_compiling(cold):
    model = tiny_llama()
    ids = torch.randint(0, 255, (2, 16))
    options = {"max_new_tokens": 20, "do_sample": False, "cache_implementation": "static", "pad_token_id": 0,
               "eos_token_id": 255}
    after_token: list[int] = []

    class Count(transformers.StoppingCriteria):
        def __call__(self, ids, scores, **kwargs):
            after_token.append(compiled.compiles)
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

    neuron_eager.clear_op_tracking()
    with opcache.count_compiles() as compiled:
        tokens = copy.deepcopy(model).to("neuron").generate(ids.to("neuron"), stopping_criteria=[Count()], **options)
    assert torch.equal(tokens.cpu(), model.generate(ids, **options))
    assert len(after_token) == 20
    assert after_token[0] <= after_token[4]
    assert after_token[4:] == [after_token[4]] * 16
    assert neuron_eager.get_fallback_ops() == []


def test_a_learning_rate_schedule_compiles_nothing_after_step_two(cold):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.Linear(40, 7)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    x, y = torch.randn(32, 24).to("neuron"), torch.randn(32, 7).to("neuron")
    after_step, losses = [], []
    with opcache.count_compiles() as compiled:
        for _ in range(8):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            after_step.append(compiled.compiles)
            losses.append(loss.item())
    assert after_step[1:] == [after_step[1]] * 7
    assert losses[-1] < losses[0]
