"""Random numbers: seeds, states, generators; the CPU's stream stays as it was."""
import copy

import pytest
import torch
import torch.nn.functional as F


def test_seed_repeats():
    torch.manual_seed(7)
    a = torch.randn(4, device="neuron")
    torch.manual_seed(7)
    assert torch.equal(a, torch.randn(4, device="neuron"))
    torch.neuron.manual_seed(7)
    assert torch.equal(a, torch.randn(4, device="neuron"))
    assert torch.neuron.initial_seed() == 7
    torch.neuron.seed()
    torch.neuron.seed_all()


def test_the_numbers_are_those_of_a_cpu_generator(equal):
    torch.manual_seed(3)
    equal(torch.randn(5, device="neuron"), torch.randn(5, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("draw", [
    lambda: torch.randn(4, device="neuron"), lambda: torch.ones(8, device="neuron").bernoulli_(0.5),
    lambda: F.dropout(torch.ones(8, device="neuron")), lambda: torch.randperm(5, device="neuron"),
    lambda: torch.native_dropout(torch.ones(8, device="neuron"), 0.5, True),
    lambda: torch.multinomial(torch.ones(4, device="neuron"), 2), lambda: torch.poisson(torch.ones(3, device="neuron")),
    lambda: F.rrelu(-torch.ones(8, device="neuron"), training=True),
    lambda: torch.rand_like(torch.ones(3, device="neuron")),
    lambda: torch.distributions.Gamma(torch.ones(2, device="neuron"), 1.0).sample(),
], ids=["randn", "bernoulli_", "dropout", "randperm", "native_dropout", "multinomial", "poisson", "rrelu", "rand_like",
        "gamma"])
def test_the_cpu_stream_is_undisturbed(draw):
    torch.manual_seed(7)
    expected = torch.randn(4)
    torch.manual_seed(7)
    draw()
    assert torch.equal(torch.randn(4), expected)
    torch.neuron.manual_seed(1)
    first = draw()
    torch.neuron.manual_seed(1)
    second = draw()
    for a, b in zip(*((t,) if isinstance(t, torch.Tensor) else t for t in (first, second))):
        assert torch.equal(a, b)


def test_state():
    state = torch.neuron.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    a = torch.rand(3, device="neuron")
    torch.neuron.set_rng_state(state)
    assert torch.equal(a, torch.rand(3, device="neuron"))
    states = torch.neuron.get_rng_state_all()
    torch.neuron.set_rng_state_all(states)
    torch.neuron.set_rng_state(state, "neuron:0")


def test_fork_rng():
    before = torch.neuron.get_rng_state()
    with torch.random.fork_rng(device_type="neuron"):
        torch.randn(3, device="neuron")
        assert not torch.equal(before, torch.neuron.get_rng_state())
    assert torch.equal(before, torch.neuron.get_rng_state())


def test_generator_of_the_device():
    g = torch.Generator(device="neuron")
    assert g.device == torch.device("neuron:0") and isinstance(g, torch.Generator)
    g.manual_seed(1)
    a = torch.randn(3, device="neuron", generator=g)
    g.manual_seed(1)
    assert torch.equal(a, torch.randn(3, device="neuron", generator=g))
    assert torch.Generator("neuron:0").device == torch.Generator(torch.device("neuron")).device == g.device
    assert torch.neuron.default_generators[0].device == torch.device("neuron:0")
    again = copy.deepcopy(g)
    assert again.device == g.device and torch.equal(again.get_state(), g.get_state())


def test_generators_of_the_cpu_are_as_before(equal):
    for g in (torch.Generator(), torch.Generator("cpu"), torch.Generator(device="cpu"), torch.default_generator):
        assert g.device.type == "cpu" and isinstance(g, torch.Generator)
    assert not isinstance(3, torch.Generator) and issubclass(type(torch.default_generator), torch.Generator)
    g = torch.Generator().manual_seed(3)
    a = torch.randn(3, device="neuron", generator=g)
    equal(a, torch.randn(3, generator=g.manual_seed(3)))
    torch.empty(3, device="neuron").normal_(generator=g)
    torch.bernoulli(torch.full((4,), 0.5, device="neuron"), generator=g)


def test_sampler_and_random_split_take_generators():
    from torch.utils.data import RandomSampler, random_split
    assert sorted(RandomSampler(range(4), generator=torch.Generator().manual_seed(0))) == [0, 1, 2, 3]
    assert len(random_split(range(4), [2, 2], generator=torch.Generator().manual_seed(0))[0]) == 2


def test_seeds_of_models(equal):
    """A model initialised on the device gets the numbers that a CPU generator of the same seed gives."""
    torch.manual_seed(5)
    with torch.device("neuron"):
        m = torch.nn.Linear(3, 3)
    torch.manual_seed(5)
    equal(m.weight, torch.nn.Linear(3, 3).weight)
