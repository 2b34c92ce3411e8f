"""Every built-in model is the network that torch-geometric would train."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gnnpipe_api.spec_model import BUILT_IN_MODELS, ModelSpec
from gnnpipe_trainer.models import BadModel, ConvBlock, Model, build_model
from gnnpipe_trainer.models.build import BUILT_IN
from gnnpipe_trainer.models.loss import loss_sum
from gnnpipe_trainer.models.plain import csr_adjacency, plain_network
from gnnpipe_trainer.models.reference import full_graph_forward
from gnnpipe_trainer.models.trial import try_model

FEATURES, CLASSES, HIDDEN, LAYERS = 7, 3, 8, 4


def spec_of(kind: str, options: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    fields = {"layers": LAYERS, "hidden": HIDDEN, "dropout": 0.0, **changes}
    return ModelSpec(kind=kind, options=options or {}, **fields)


def label(spec: object) -> str | None:
    if not isinstance(spec, ModelSpec):
        return None
    options = (f"{key}={value}" for key, value in spec.options.items())
    return "-".join([spec.kind, f"{spec.layers}x{spec.hidden}", *options])


SPECS = [
    spec_of("gcn"),
    spec_of("gcn", layers=1),
    spec_of("gcn", {"norm": "layer"}),
    spec_of("gcn", hidden=2),
    spec_of("sage"),
    spec_of("sage", layers=1),
    spec_of("sage", {"norm": "layer"}),
    spec_of("gin"),
    spec_of("gin", {"norm": "layer", "eps": 0.3, "train_eps": True}),
    spec_of("gat"),
    spec_of("gat", {"heads": 4}),
    spec_of("gat", {"heads": 3, "concat": False, "norm": "layer"}),
    spec_of("gcnii"),
    spec_of("gcnii", {"alpha": 0.3, "theta": 1.5}),
    spec_of("resgcn"),
    spec_of("resgcn", layers=1),
]
ONE_OF_EACH = [spec_of(kind) for kind in BUILT_IN]


def build(spec: ModelSpec) -> Model:
    return build_model(spec, FEATURES, CLASSES)


def relative_difference(one: Tensor, other: Tensor) -> float:
    return float(((one - other).abs().max() / other.abs().max().clamp(min=1e-3)).detach())


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_logits_and_gradients_are_those_of_torch_geometric(spec: ModelSpec, graph: Any) -> None:
    model = build(spec)
    plain = plain_network(spec, FEATURES, CLASSES)
    plain.load_from(model)

    ours = full_graph_forward(model, graph.features, graph.edge_index)
    theirs = plain(graph.features, graph.edge_index)
    loss_sum(ours, graph.labels, graph.train).backward()
    loss_sum(theirs, graph.labels, graph.train).backward()

    assert relative_difference(ours, theirs) < 1e-12
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    matched = set()
    for name, parameter in plain.named_parameters():
        gradient = gradients[plain.model_name(name)]
        assert gradient is not None
        assert parameter.grad is not None
        assert relative_difference(plain.in_plain_shape(name, gradient), parameter.grad) < 1e-12, name
        matched.add(plain.model_name(name))
    assert matched == set(gradients)


@pytest.mark.parametrize(
    "spec", [spec_of("gcn"), spec_of("sage"), spec_of("gin"), spec_of("gcnii"), spec_of("resgcn")], ids=label
)
def test_the_plain_network_gives_the_same_on_csr_with_cached_normalisation(
    spec: ModelSpec, graph: Any
) -> None:
    plain = plain_network(spec, FEATURES, CLASSES)
    cached = plain_network(spec, FEATURES, CLASSES, cached=True)
    cached.load_state_dict(plain.state_dict())
    adjacency = csr_adjacency(graph.edge_index, graph.features.size(0), torch.float64)
    on_edges = plain(graph.features, graph.edge_index)
    for _ in range(2):  # the second call reads the cache
        assert relative_difference(cached(graph.features, adjacency), on_edges) < 1e-12


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_exactly_hidden_columns_flow_between_blocks(spec: ModelSpec, graph: Any) -> None:
    model = build(spec)
    state = model.encoder(graph.features)
    for i, block in enumerate(model.block_list()):
        message = block.message(state)
        assert message.shape == (graph.features.size(0), block.message_width)
        gathered = (
            block.convolve(message, message.size(0), graph.edge_index)
            if isinstance(block, ConvBlock)
            else message
        )
        state = block.update(gathered, message, state)
        assert tuple(tensor.size(1) for tensor in state) == block.widths
        if i < spec.layers - 1:
            assert set(block.widths) == {spec.hidden}
            assert len(block.widths) == (2 if spec.kind == "gcnii" else 1)
    assert model.decoder(state).shape == (graph.features.size(0), CLASSES)


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_a_constant_first_message_is_the_features_even_in_training(spec: ModelSpec, graph: Any) -> None:
    model = build(spec.model_copy(update={"dropout": 0.5}))
    if model.constant_first_message:
        message = model.block_list()[0].message(model.encoder(graph.features))
        assert torch.equal(message, graph.features)
        assert not message.requires_grad
    assert model.constant_first_message == (spec.kind in ("gcn", "sage", "gin"))


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_a_model_keeps_what_it_says_about_gradients_at_zeros(spec: ModelSpec) -> None:
    model = build(spec.model_copy(update={"dropout": 0.5}))
    try_model(model, spec.kind, FEATURES, CLASSES, spec.hidden, spec.layers)
    stopping = {block.gradient_stops_at_zeros for block in model.block_list()[:-1]}
    assert stopping <= {spec.kind != "resgcn"}  # a single layer has no border


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_neighbours_read_the_narrower_of_input_and_output(kind: str) -> None:
    *inner, last = build(spec_of(kind, hidden=8)).block_list()
    assert [block.message_width for block in inner] == [FEATURES, 8, 8]
    assert last.message_width == CLASSES
    assert build(spec_of(kind, hidden=2)).block_list()[-1].message_width == 2


@pytest.mark.parametrize("spec", ONE_OF_EACH, ids=label)
def test_dropout_acts_in_training_only(spec: ModelSpec, graph: Any) -> None:
    model = build(spec.model_copy(update={"dropout": 0.5}))

    def logits() -> Tensor:
        return full_graph_forward(model, graph.features, graph.edge_index)

    assert not torch.equal(logits(), logits())
    model.eval()
    assert torch.equal(logits(), logits())


@pytest.mark.parametrize("spec", ONE_OF_EACH, ids=label)
def test_the_same_seed_builds_the_same_model(spec: ModelSpec) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(build(spec).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_the_manifest_and_the_models_room_know_the_same_kinds() -> None:
    assert set(BUILT_IN) == set(BUILT_IN_MODELS)


STATE_NAMES = {
    "gcn": "blocks.0.linear.weight blocks.0.linear.bias blocks.1.linear.weight blocks.1.linear.bias",
    "sage": "blocks.0.neighbours.weight blocks.0.neighbours.bias blocks.0.root.weight "
    "blocks.1.neighbours.weight blocks.1.neighbours.bias blocks.1.root.weight",
    "gin": "blocks.0.eps blocks.0.inner.weight blocks.0.inner.bias blocks.0.outer.weight blocks.0.outer.bias "
    "blocks.1.eps blocks.1.inner.weight blocks.1.inner.bias blocks.1.outer.weight blocks.1.outer.bias",
    "gat": "blocks.0.conv.att_src blocks.0.conv.att_dst blocks.0.conv.bias blocks.0.linear.weight "
    "blocks.1.conv.att_src blocks.1.conv.att_dst blocks.1.conv.bias blocks.1.linear.weight",
    "gcnii": "encoder.linear.weight encoder.linear.bias blocks.0.linear.weight blocks.1.linear.weight "
    "decoder.linear.weight decoder.linear.bias",
    "resgcn": "encoder.linear.weight encoder.linear.bias "
    "blocks.0.neighbours.weight blocks.0.neighbours.bias blocks.0.root.weight "
    "blocks.1.before.norm.weight blocks.1.before.norm.bias "
    "blocks.1.neighbours.weight blocks.1.neighbours.bias blocks.1.root.weight "
    "decoder.before.norm.weight decoder.before.norm.bias decoder.linear.weight decoder.linear.bias",
}


@pytest.mark.parametrize("kind", STATE_NAMES)
def test_saved_models_keep_their_names(kind: str) -> None:
    """model.pt and checkpoints of earlier versions are read by these names."""
    assert set(build(spec_of(kind, layers=2)).state_dict()) == set(STATE_NAMES[kind].split())


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (spec_of("gcn").model_copy(update={"kind": "gnc"}), "spec.model.kind: 'gnc' is not known; use gcn, "),
        (spec_of("gcn", {"norn": "layer"}), "spec.model.options.norn: gcn has no such option"),
        (
            spec_of("gcn", {"norm": "batch"}),
            "spec.model.options.norm: input should be 'none' or 'layer', not 'batch'",
        ),
        (spec_of("gcn", {"hidden": 3}), "spec.model.options.hidden: is no option"),
        (
            spec_of("gcnii", {"alpha": 2}),
            "spec.model.options.alpha: input should be less than or equal to 1, not 2",
        ),
        (
            spec_of("gcnii", {"theta": "0.5"}),
            "spec.model.options.theta: input should be a valid number, not '0.5'",
        ),
        (
            spec_of("gat", {"heads": 0}),
            "spec.model.options.heads: input should be greater than or equal to 1, not 0",
        ),
        (
            spec_of("gat", {"heads": 3}),
            "spec.model.options.heads: 3 heads cannot share 8 hidden columns evenly",
        ),
        (spec_of("resgcn", {"alpha": 1}), "spec.model.options.alpha: resgcn has no such option"),
    ],
    ids=label,
)
def test_a_wrong_option_is_one_sentence_with_its_path(spec: ModelSpec, sentence: str) -> None:
    with pytest.raises(BadModel) as caught:
        build(spec)
    assert str(caught.value).startswith(sentence)
