"""Featurizers: there and back, orthonormality however long the training, gradients, and files in every layout."""

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from causalab_mini.data import parameters as reader
from causalab_mini.data.parameters import PARAMETERS, find_parameters, read_header
from causalab_mini.errors import DataError
from causalab_mini.ops import reductions
from causalab_mini.ops.featurizers import (
    FEATURIZERS,
    Chain,
    Dictionary,
    Gate,
    Identity,
    Rotation,
    Standardize,
    Subspace,
    TrainedGate,
    draw_gate,
    dump,
    files,
    load,
    pca_basis,
    random_basis,
)
from causalab_mini.ops.featurizers.rotation import cayley, householder, start_householder
from causalab_mini.ops.featurizers.subspace import positive_qr
from causalab_mini.ops.windows import Value

pytestmark = pytest.mark.tiny

D, K = 24, 40
PARAMETRIZATIONS = ("cayley", "householder", "qr")
SIZES = ((5, 1), (6, 6), (1, 1), (40, 7), (257, 64))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dictionary(**changes):
    tensors = {"W_enc": drawn(D, K, seed=1) / 5, "W_dec": drawn(K, D, seed=2) / 6, "b_enc": drawn(K, seed=3), "b_dec": drawn(D, seed=4)}
    return Dictionary(**{**tensors, **changes})


KINDS = {
    "identity": Identity(D),
    "subspace": Subspace(random_basis(D, 5, 0)),
    "one direction": Subspace(random_basis(D, 1, 0)),
    "the whole space": Subspace(random_basis(D, D, 0)),
    "soft gate": Gate(drawn(D).sigmoid()),
    "hard gate": TrainedGate(drawn(D)).hard(),
    "linear": dictionary(),
    "linear without biases": dictionary(b_enc=None, b_dec=None),
    "relu": dictionary(activation="relu", subtracts_b_dec=True),
    "jumprelu": dictionary(activation="jumprelu", threshold=drawn(K, seed=5).abs()),
    "topk": dictionary(activation="topk", topk=3, subtracts_b_dec=True),
    "standardize": Standardize(drawn(D), torch.cat([torch.zeros(2), drawn(D - 2, seed=1).abs()])),
    "chain": Chain((Standardize(drawn(D), drawn(D, seed=1).abs()), Subspace(random_basis(D, 5, 0)), Gate(drawn(5).sigmoid()))),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def relative(found, expected):
    return float(torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected))


# in use


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_value_comes_back_as_it_was(kind, dtype):
    x = (3.0 * drawn(2, 7, D, seed=9)).to(dtype)
    features, err = kind.encode(x)
    value = kind.decode(features, err)
    assert features.shape == (2, 7, kind.n_features)
    assert features.dtype == value.dtype == torch.float32
    assert relative(value, x.float()) < 1e-6  # a few roundings of fp32


def test_the_identity_is_exact():
    x = drawn(3, D)
    assert torch.equal(Identity(D).decode(*Identity(D).encode(x)), x)
    assert torch.equal(KINDS["hard gate"].decode(*KINDS["hard gate"].encode(x)), x)


@every_kind
def test_autocast_changes_no_number(kind):
    x = drawn(7, D, seed=9)
    plain = kind.encode(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = kind.encode(x)
        value = kind.decode(*mixed)
    assert torch.equal(mixed[0], plain[0])
    assert torch.equal(value, kind.decode(*plain))


@every_kind
def test_features_that_come_in_less_precision_are_decoded_in_fp32(kind):
    features, err = kind.encode(drawn(7, D, seed=9))
    assert kind.decode(features.bfloat16(), err).dtype == torch.float32


@every_kind
def test_gradients_pass_and_the_value_is_left_alone(kind):
    x = drawn(7, D, seed=9).requires_grad_()
    before = x.detach().clone()
    features, err = kind.encode(x)
    kind.decode(2.0 * features, err).sum().backward()
    assert torch.equal(x.detach(), before)
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("d", [24, 2048])
def test_what_is_orthogonal_to_a_subspace_stays_as_it_was(d):
    basis = random_basis(d, 5, 0)
    x, other = drawn(7, d, seed=9), drawn(7, 5, seed=10)
    coordinates = Subspace(basis)
    value = coordinates.decode(other, coordinates.encode(x)[1])
    complement = torch.eye(d) - basis @ basis.T
    assert relative(value @ complement, x @ complement) < 1e-6
    assert relative(value @ basis, other) < 1e-6


def test_a_gate_lets_through_what_its_mask_says():
    x, other = drawn(7, 4, seed=9), drawn(7, 4, seed=10)
    gate = Gate(torch.tensor([1.0, 0.0, 0.25, 1.0]))
    value = gate.decode(gate.encode(other)[0], gate.encode(x)[1])
    torch.testing.assert_close(value, gate.mask * other + (1 - gate.mask) * x)


@pytest.mark.parametrize("subtracts", [False, True])
@pytest.mark.parametrize("activation", ["relu", "jumprelu", "topk", None])
def test_a_dictionary_is_what_its_paper_says(activation, subtracts):
    sae = dictionary(activation=activation, threshold=drawn(K, seed=5).abs(), topk=3, subtracts_b_dec=subtracts)
    x = drawn(7, D, seed=9)
    features, err = sae.encode(x)
    w_enc, w_dec, b_enc, b_dec, threshold = (
        tensor.double().numpy() for tensor in (sae.W_enc, sae.W_dec, sae.b_enc, sae.b_dec, sae.threshold)
    )
    for row in range(7):
        value = x[row].double().numpy()
        before = (value - b_dec * subtracts) @ w_enc + b_enc
        if activation == "relu":
            expected = np.maximum(before, 0)
        elif activation == "jumprelu":
            expected = np.where(before > threshold, before, 0)
        elif activation == "topk":
            expected = np.where(before >= np.sort(before)[-3], np.maximum(before, 0), 0)
        else:
            expected = before
        np.testing.assert_allclose(features[row], expected, atol=1e-5)
        np.testing.assert_allclose(err[row], value - (expected @ w_dec + b_dec), atol=1e-5)


def test_fewer_positive_features_than_k_leave_zeros():
    sae = dictionary(activation="topk", topk=3, b_enc=torch.full((K,), -100.0))
    assert not sae.encode(drawn(7, D))[0].any()


def test_a_spread_of_zero_counts_as_one():
    features, _ = Standardize(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0])).encode(torch.tensor([[4.0, 4.0]]))
    assert features.tolist() == [[3.0, 1.5]]


def test_a_chain_encodes_in_order():
    first, second = Standardize(drawn(D), drawn(D, seed=1).abs()), Subspace(random_basis(D, 5, 0))
    x = drawn(7, D, seed=9)
    features, err = Chain((first, second)).encode(x)
    assert torch.equal(features, second.encode(first.encode(x)[0])[0])
    assert len(err) == 2
    changed = Chain((first, second)).decode(features + 1.0, err)
    assert torch.equal(changed, first.decode(second.decode(features + 1.0, err[1]), err[0]))


def test_parameters_are_copied_to_a_device_once():
    coordinates = Subspace(random_basis(D, 5, 0).bfloat16())
    assert coordinates.on(torch.device("cpu")) is coordinates.on(torch.device("cpu"))
    assert coordinates.on(torch.device("meta")).basis.device.type == "meta"


def test_a_copy_made_under_inference_mode_can_be_trained_through():
    coordinates = Subspace(random_basis(D, 5, 0).double())
    x = drawn(7, D, seed=9)
    with torch.inference_mode():
        coordinates.encode(x)
    x.requires_grad_()
    coordinates.encode(x)[0].square().sum().backward()
    assert x.grad is not None


def test_a_parameter_that_is_trained_keeps_its_gradient():
    basis = random_basis(D, 5, 0).double().requires_grad_()
    coordinates = Subspace(basis)
    with torch.no_grad():
        coordinates.encode(drawn(7, D))
    coordinates.encode(drawn(7, D))[0].square().sum().backward()
    assert basis.grad is not None


# where training starts


def test_a_random_basis_is_orthonormal_and_depends_on_its_seed_alone():
    basis = random_basis(50, 7, 3)
    torch.testing.assert_close(basis.T @ basis, torch.eye(7), atol=1e-6, rtol=0)
    torch.manual_seed(1)
    assert torch.equal(basis, random_basis(50, 7, 3))
    assert not torch.equal(basis, random_basis(50, 7, 4))


def test_random_bases_are_uniform():
    entries = torch.stack([random_basis(3, 3, seed) for seed in range(2000)])
    assert entries.mean(dim=0).abs().max() < 0.06  # five standard errors, √(1 / (3 · 2000)) each; LAPACK's own signs would give 0.5
    assert (entries.square().mean(dim=0) - 1 / 3).abs().max() < 0.04


def test_a_pca_basis_is_that_of_the_outputs():
    data = drawn(30, 12) * torch.linspace(1, 3, 12) + 5.0
    basis = pca_basis(data, 4)
    torch.testing.assert_close(basis.T @ basis, torch.eye(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(basis.T, reductions.pca(Value(data[None], (30,)), 4)[0])


# being trained


def is_orthonormal(basis):
    return float((basis.mT @ basis - torch.eye(basis.shape[-1], dtype=basis.dtype)).abs().max()) < 1e-5


def train(module, planted, n_steps=200, learning_rate=0.05):
    """Returns the share of a planted subspace that a module's basis has found, after training it to find all."""
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate)
    for _ in range(n_steps):
        optimizer.zero_grad()
        (-(planted.T @ module.coordinates().basis).square().sum()).backward()
        optimizer.step()
    return float((planted.T @ module.hard().basis).square().sum() / planted.shape[1])


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize(("d", "k"), SIZES)
def test_a_basis_is_orthonormal_after_training(parametrization, d, k):
    start = random_basis(d, k, 0)
    module = Rotation(start, parametrization)
    torch.testing.assert_close(module.basis(), start, atol=1e-6, rtol=0)
    found = train(module, random_basis(d, k, 1))
    assert is_orthonormal(module.hard().basis.double())
    assert found > 0.97


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_training_finds_a_planted_subspace(parametrization):
    assert train(Rotation(random_basis(40, 7, 0), parametrization), random_basis(40, 7, 1)) > 0.9999


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_a_wide_basis_moves_and_stays_orthonormal(parametrization):
    start = random_basis(2048, 8, 0)
    module = Rotation(start, parametrization)
    found = train(module, random_basis(2048, 8, 1), n_steps=20)
    assert found > 10 * float((random_basis(2048, 8, 1).T @ start).square().sum() / 8)
    assert is_orthonormal(module.hard().basis.double())


def test_cayley_starts_exactly_at_its_start():
    start = random_basis(257, 64, 0)
    assert torch.equal(Rotation(start, "cayley").basis(), start)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_training_far_away_keeps_the_basis_orthonormal(parametrization):
    module = Rotation(random_basis(50, 7, 0), parametrization)
    with torch.no_grad():
        module.free += 1000.0 * drawn(50, 7, seed=5)
    assert is_orthonormal(module.hard().basis.double())


@pytest.mark.parametrize(("d", "k"), [(5, 1), (4, 4), (7, 3)])
def test_the_parametrizations_have_the_gradients_of_finite_differences(d, k):
    start = positive_qr(drawn(d, k).double())
    free = drawn(d, k, seed=1).double().requires_grad_()
    signs = torch.where(drawn(k, seed=2) < 0, -1.0, 1.0).double()
    assert torch.autograd.gradcheck(lambda free: cayley(free, start), (free,))
    assert torch.autograd.gradcheck(lambda free: cayley(free, start), (torch.zeros_like(free).requires_grad_(),))
    assert torch.autograd.gradcheck(lambda free: householder(free, signs), (free,))
    assert torch.autograd.gradcheck(positive_qr, (free,))


@pytest.mark.parametrize(("d", "k"), [(5, 1), (4, 4), (7, 3)])
def test_the_short_forms_are_the_long_ones(d, k):
    start, free = positive_qr(drawn(d, k).double()), drawn(d, k, seed=1).double()
    skew = free @ start.T - start @ free.T
    turn = torch.linalg.solve(torch.eye(d) + skew / 2, torch.eye(d).double() - skew / 2)
    torch.testing.assert_close(cayley(free, start), turn @ start)
    below = free.tril(-1)
    product = torch.linalg.householder_product(below, 2.0 / (1.0 + below.square().sum(dim=0)))
    torch.testing.assert_close(householder(free, torch.ones(k)), product)


def test_a_start_along_the_axes_has_reflections():
    for start in (torch.eye(5, 3), -torch.eye(5, 3), torch.eye(5).flip(0)[:, :3]):
        torch.testing.assert_close(householder(*start_householder(start)), start)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_autocast_changes_no_basis(parametrization):
    module = Rotation(random_basis(40, 7, 0), parametrization)
    train(module, random_basis(40, 7, 1), n_steps=3)
    plain = module.basis()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module.coordinates().basis, plain)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_a_rotation_is_saved_and_goes_on_from_its_state(parametrization):
    module = Rotation(random_basis(40, 7, 0), parametrization)
    train(module, random_basis(40, 7, 1), n_steps=3)
    again = Rotation(random_basis(40, 7, 2), parametrization)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.basis(), module.basis())
    (name, tensor), *rest = module.tensors().items()
    assert (name, rest) == ("basis", [])
    assert torch.equal(tensor, module.basis())
    assert not tensor.requires_grad
    assert not module.hard().basis.requires_grad
    assert module.coordinates().basis.requires_grad


def test_a_gate_is_soft_while_it_is_trained_and_hard_afterwards():
    module = TrainedGate(torch.tensor([-2.0, 0.0, 0.5]))
    torch.testing.assert_close(module.coordinates(0.5).mask, torch.sigmoid(torch.tensor([-4.0, 0.0, 1.0])))
    assert module.coordinates(1e-3).mask.tolist() == [0.0, 0.5, 1.0]
    assert module.hard().mask.tolist() == [0.0, 0.0, 1.0]
    assert not module.hard().mask.requires_grad
    module.coordinates().mask.sum().backward()
    assert (module.theta.grad > 0).all()
    assert module.tensors()["theta"].tolist() == [-2.0, 0.0, 0.5]


def test_a_gate_starts_near_the_middle():
    theta = draw_gate(4000, 3)
    assert torch.equal(theta, draw_gate(4000, 3))
    assert abs(float(theta.std()) - 0.01) < 0.001
    assert abs(float(theta.mean())) < 0.001


def test_a_gate_finds_the_coordinates_that_matter():
    module = TrainedGate(draw_gate(D, 0))
    wanted = (torch.arange(D) % 3 == 0).float()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    base, source = drawn(50, D, seed=1), drawn(50, D, seed=2)
    for _ in range(100):
        coordinates = module.coordinates()
        value = coordinates.decode(coordinates.encode(source)[0], coordinates.encode(base)[1])
        optimizer.zero_grad()
        (value - wanted * source - (1 - wanted) * base).square().mean().backward()
        optimizer.step()
    assert torch.equal(module.hard().mask, wanted)


# files


def test_every_kind_of_file_has_a_featurizer():
    assert set(FEATURIZERS) == set(PARAMETERS)
    assert files.FORMAT == reader.FORMAT


def made(path, kind, activation=None, name="any"):
    found = find_parameters(read_header(path), name, kind, activation)
    tensors = load(found)
    return tensors, FEATURIZERS[kind](tensors, found.options)


def same(tensors, expected):
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, expected[name].float(), rtol=1e-6, atol=1e-6)


def test_what_was_trained_is_read_back(tmp_path):
    rotation, gate = Rotation(random_basis(D, 5, 0), "householder"), TrainedGate(drawn(D))
    stamp = dict.fromkeys(reader.STAMP_KEYS)
    stamps = {"turned": {**stamp, "kind": "subspace", "d": D, "k": 5}, "open": {**stamp, "kind": "gate", "d": D}}
    data = dump({"turned": rotation.tensors(), "open": gate.tensors()}, stamps, "abc")
    file = tmp_path / "a.safetensors"
    file.write_bytes(data)
    assert data == dump({"open": gate.tensors(), "turned": rotation.tensors()}, dict(reversed(stamps.items())), "abc")
    assert read_header(file).metadata == {"digest": "abc", "format": reader.FORMAT, "stamps": json.dumps(stamps, sort_keys=True)}
    tensors, coordinates = made(file, "subspace", name="turned")
    assert torch.equal(tensors["basis"], rotation.basis())
    assert torch.equal(coordinates.basis, rotation.hard().basis)
    assert torch.equal(made(file, "gate", name="open")[1].mask, gate.hard().mask)


TENSORS = {"W_enc": drawn(4, 6, seed=1), "W_dec": drawn(6, 4, seed=2), "b_enc": drawn(6, seed=3), "b_dec": drawn(4, seed=4)}
LAYOUTS = {
    "plain": ("W_enc", "W_dec", "b_enc", "b_dec", False),
    "transposed": ("W_enc", "W_dec", "b_enc", "b_dec", True),
    "torch": ("encoder.weight", "decoder.weight", "encoder.bias", "decoder.bias", True),
    "torch's names, plain": ("encoder.weight", "decoder.weight", "encoder.bias", "decoder.bias", False),
    "OpenAI": ("encoder.weight", "decoder.weight", "latent_bias", "pre_bias", True),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_an_autoencoder_is_the_same_in_every_layout(tmp_path, layout):
    *names, is_transposed = layout
    turned = {name: tensor.T.contiguous() if is_transposed and tensor.ndim == 2 else tensor for name, tensor in TENSORS.items()}
    save_file(dict(zip(names, turned.values(), strict=True)), tmp_path / "a.safetensors")
    tensors, sae = made(tmp_path / "a.safetensors", "sae", "relu")
    same(tensors, TENSORS)
    x = drawn(5, 4, seed=9)
    expected = torch.relu((x - TENSORS["b_dec"]) @ TENSORS["W_enc"] + TENSORS["b_enc"])
    torch.testing.assert_close(sae.encode(x)[0], expected)


def test_a_folder_of_saelens_is_read_with_its_settings(tmp_path):
    threshold = drawn(6).abs()
    save_file({**TENSORS, "log_threshold": threshold.log().double()}, tmp_path / "sae_weights.safetensors")
    config = {"architecture": "jumprelu", "activation_fn_str": "relu", "apply_b_dec_to_input": True, "d_in": 4, "d_sae": 6}
    (tmp_path / "cfg.json").write_text(json.dumps(config))
    tensors, sae = made(tmp_path / "sae_weights.safetensors", "sae")
    same(tensors, {**TENSORS, "threshold": threshold})
    assert (sae.activation, sae.subtracts_b_dec) == ("jumprelu", True)


def test_a_linear_map_without_a_decoder_projects(tmp_path):
    weight = drawn(2, 4)
    save_file({"weight": weight}, tmp_path / "a.safetensors")
    tensors, linear = made(tmp_path / "a.safetensors", "linear")
    same(tensors, {"W_enc": weight.T})
    x = drawn(5, 4, seed=9)
    features, err = linear.encode(x)
    torch.testing.assert_close(features, x @ weight.T)
    torch.testing.assert_close(err @ weight.T, torch.zeros(5, 2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_bases_are_read_in_any_orientation_and_dtype(tmp_path, dtype):
    basis = random_basis(8, 2, 0).to(dtype)
    for kind, saved in (("subspace", basis), ("subspace", basis.T), ("pca", basis.T), ("pca", basis)):
        save_file({"directions": saved.contiguous()}, tmp_path / "a.safetensors")
        same(made(tmp_path / "a.safetensors", kind)[0], {"basis": basis})
    save_file({"direction": basis[:, 0].contiguous()}, tmp_path / "a.safetensors")
    same(made(tmp_path / "a.safetensors", "pca")[0], {"basis": basis[:, :1]})


def test_vectors_are_read(tmp_path):
    vectors = {"mean": drawn(8), "std": drawn(8, seed=1).abs(), "theta": drawn(8, seed=2)}
    save_file(vectors, tmp_path / "a.safetensors")
    tensors, coordinates = made(tmp_path / "a.safetensors", "standardize")
    same(tensors, {"mean": vectors["mean"], "std": vectors["std"]})
    torch.testing.assert_close(coordinates.encode(vectors["mean"])[0], torch.zeros(8))
    assert torch.equal(made(tmp_path / "a.safetensors", "gate")[1].mask, (vectors["theta"] > 0).float())


WHOLE = dump({"turned": {"basis": drawn(8, 2)}, "open": {"theta": drawn(8)}}, {}, "abc")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(at=st.integers(0, 231), byte=st.sampled_from(b'0123456789[]{}",: aF"'))
def test_a_header_that_is_accepted_is_one_that_safetensors_opens(tmp_path, at, byte):
    file = tmp_path / "a.safetensors"
    file.write_bytes(WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :])
    try:
        header = read_header(file)
    except DataError:
        return
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            assert {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()} == header.shapes  # noqa: SIM118
    except SafetensorError as problem:
        raise AssertionError(f"safetensors refuses {file.read_bytes()!r}") from problem
