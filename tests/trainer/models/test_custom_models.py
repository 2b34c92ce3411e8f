"""A person's own model is found, tried and trained; what is wrong with it is said in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnpipe_api.spec_model import ModelSpec
from gnnpipe_trainer.models import BadModel, Model, build_model
from gnnpipe_trainer.models.loss import loss_sum
from gnnpipe_trainer.models.reference import full_graph_forward

FEATURES, CLASSES, HIDDEN, LAYERS = 7, 3, 8, 2
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

PRELUDE = """
import torch
from torch import nn
from torch_geometric.nn import GCNConv, SAGEConv
from gnnpipe_trainer.models import Block, ConvBlock, FirstTensor, Model, RawFeatures

def sage(i, o):
    return ConvBlock(SAGEConv(i, o), message_width=i, widths=(o,))
"""

TWO_BLOCKS = """
def build(features, classes, hidden, **_):
    blocks = [sage(features, hidden), sage(hidden, classes)]
    return blocks
"""


def build(kind: str, folder: Path, **options: Any) -> Model:
    spec = ModelSpec(kind=kind, layers=LAYERS, hidden=HIDDEN, dropout=0.0, options=options)
    return build_model(spec, FEATURES, CLASSES, folder)


@pytest.fixture(autouse=True)
def _path_and_modules_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_model", "my_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_example_trains(graph: Any) -> None:
    model = build("my_model:build", EXAMPLES, heads=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        logits = full_graph_forward(model, graph.features, graph.edge_index)
        loss = loss_sum(logits, graph.labels, graph.train)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_list_of_blocks_leads_from_features_to_logits(tmp_path: Path, graph: Any) -> None:
    (tmp_path / "own_model.py").write_text(PRELUDE + TWO_BLOCKS)
    model = build("own_model:build", tmp_path)
    logits = full_graph_forward(model, graph.features, graph.edge_index)
    assert logits.shape == (graph.features.size(0), CLASSES)


def test_the_folder_of_the_manifest_wins_over_a_module_of_the_same_name(tmp_path: Path) -> None:
    for folder, mark in (("one", 1), ("other", 2)):
        (tmp_path / folder).mkdir()
        marked = TWO_BLOCKS.replace("return blocks", f"blocks[0].mark = {mark}; return blocks")
        (tmp_path / folder / "own_model.py").write_text(PRELUDE + marked)
    marks = [build("own_model:build", tmp_path / folder).blocks[0].mark for folder in ("one", "other", "one")]
    assert marks == [1, 2, 1]


def test_trying_a_model_leaves_the_seed_and_the_training_mode_alone(tmp_path: Path) -> None:
    (tmp_path / "own_model.py").write_text(PRELUDE + TWO_BLOCKS)
    torch.manual_seed(5)
    model = build("own_model:build", tmp_path)
    after_trial = torch.rand(1)

    import own_model  # type: ignore[import-not-found]

    torch.manual_seed(5)
    own_model.build(FEATURES, CLASSES, HIDDEN)
    assert torch.equal(torch.rand(1), after_trial)
    assert model.training


BAD_FACTORIES = {
    "no such function": ("", "module 'own_model' has no 'build'"),
    "not a function": ("build = 3", "has something that cannot be called as 'build'"),
    "a mistake in the module": ("1 / 0", "importing own_model failed with ZeroDivisionError"),
    "a syntax error": ("def build(:", "importing own_model failed with SyntaxError"),
    "a missing import": (
        "import no_such_package",
        "importing own_model failed with ModuleNotFoundError: No module",
    ),
    "wrong arguments": ("def build(width): ...", "own_model:build failed with TypeError"),
    "an error of its own": (
        "def build(**_): raise KeyError('gone')",
        "own_model:build failed with KeyError: 'gone'",
    ),
    "nothing returned": (
        "def build(**_): ...",
        "own_model:build returned a NoneType; it must return a Model",
    ),
    "a plain module": ("def build(**_): return nn.Linear(2, 2)", "returned a Linear; it must return a Model"),
    "a list of convs": ("def build(**_): return [SAGEConv(2, 2)]", "returned a list of SAGEConv; it must"),
    "an empty list": ("def build(**_): return []", "returned a list of nothing"),
    "too few blocks": (
        "def build(features, classes, **_): return [sage(features, classes)]",
        "spec.model.layers: is 2, but own_model:build made 1 blocks",
    ),
    "another width between blocks": (
        "def build(features, classes, **_): return [sage(features, 5), sage(5, classes)]",
        "block 0 of own_model:build returns widths (5,); what flows between blocks must be 8",
    ),
    "another width than declared": (
        "def build(features, classes, hidden, **_):\n"
        "    return [ConvBlock(SAGEConv(features, 9), features, (hidden,)), sage(9, classes)]",
        "update of block 0 (ConvBlock) of own_model:build must be [vertices, 8], but for 4 vertices it is [4, 9]",
    ),
    "another message width than declared": (
        "def build(features, classes, hidden, **_):\n"
        "    return [ConvBlock(SAGEConv(features, hidden), 2, (hidden,)), sage(hidden, classes)]",
        "message of block 0 (ConvBlock) of own_model:build must be [vertices, 2]",
    ),
    "logits of the wrong width": (
        "def build(features, hidden, **_): return [sage(features, hidden), sage(hidden, hidden)]",
        "the decoder of own_model:build must be [vertices, 3]",
    ),
    "an input of the wrong width": (
        "def build(features, classes, hidden, **_):\n"
        "    return [sage(features, hidden), ConvBlock(SAGEConv(5, classes), hidden, (classes,))]",
        "block 1 (ConvBlock) of own_model:build failed with RuntimeError",
    ),
    "a conv that takes no pair": (
        "def build(features, classes, hidden, **_):\n"
        "    return [ConvBlock(GCNConv(features, hidden), features, (hidden,)), sage(hidden, classes)]",
        "block 0 (ConvBlock) of own_model:build failed with ValueError",
    ),
    "a state that is no tuple": (
        "class B(ConvBlock):\n"
        "    def update(self, gathered, own, state): return gathered\n"
        "def build(features, classes, hidden, **_):\n"
        "    return [B(SAGEConv(features, hidden), features, (hidden,)), sage(hidden, classes)]",
        "update of block 0 (B) of own_model:build must return a tuple of 1 tensors",
    ),
    "a block without aggregation": (
        "def build(features, classes, hidden, **_): return [Block(features, (hidden,)), sage(hidden, classes)]",
        "edge_weights of block 0 (Block) of own_model:build is None; use sym, mean or sum",
    ),
    "rows that mix": (
        "class B(ConvBlock):\n"
        "    def update(self, gathered, own, state): return (gathered - gathered.mean(0),)\n"
        "def build(features, classes, hidden, **_):\n"
        "    return [B(SAGEConv(features, hidden), features, (hidden,)), sage(hidden, classes)]",
        "update of block 0 (B) of own_model:build gives a vertex another result when other vertices come with it",
    ),
    "batch norm": (
        "def build(features, classes, hidden, **_):\n"
        "    blocks = [sage(features, hidden), sage(hidden, classes)]\n"
        "    blocks[0].norm = nn.BatchNorm1d(hidden)\n"
        "    return blocks",
        "own_model:build uses BatchNorm1d, which mixes the vertices of a chunk; use LayerNorm",
    ),
    "an encoder that fails": (
        "def build(features, classes, hidden, **_):\n"
        "    return Model(nn.Linear(1, 1), [sage(features, hidden), sage(hidden, classes)], FirstTensor())",
        "the encoder of own_model:build failed with",
    ),
    "an encoder that returns no state": (
        "def build(features, classes, hidden, **_):\n"
        "    blocks = [sage(hidden, hidden), sage(hidden, classes)]\n"
        "    return Model(nn.Linear(features, hidden), blocks, FirstTensor())",
        "the encoder of own_model:build must return a tuple of tensors",
    ),
    "a first message said to be constant that is not": (
        "class B(ConvBlock):\n"
        "    def message(self, state): return nn.functional.dropout(state[0], 0.5, self.training)\n"
        "def build(features, classes, hidden, **_):\n"
        "    blocks = [B(SAGEConv(features, hidden), features, (hidden,)), sage(hidden, classes)]\n"
        "    return Model(RawFeatures(), blocks, FirstTensor(), constant_first_message=True)",
        "own_model:build says constant_first_message, but",
    ),
    "gradients said to stop at zeros that pass": (
        "class B(ConvBlock):\n"
        "    gradient_stops_at_zeros = True\n"
        "    def update(self, gathered, own, state): return (gathered - gathered.detach(),)\n"
        "def build(features, classes, hidden, **_):\n"
        "    return [B(SAGEConv(features, hidden), features, (hidden,)), sage(hidden, classes)]",
        "block 0 (B) of own_model:build says gradient_stops_at_zeros, but",
    ),
    "a decoder that fails": (
        "def build(features, classes, hidden, **_):\n"
        "    return Model(RawFeatures(), [sage(features, hidden), sage(hidden, classes)], nn.Linear(1, 1))",
        "the decoder of own_model:build failed with",
    ),
}


@pytest.mark.parametrize("mistake", BAD_FACTORIES)
def test_a_bad_factory_is_one_sentence(mistake: str, tmp_path: Path) -> None:
    body, sentence = BAD_FACTORIES[mistake]
    (tmp_path / "own_model.py").write_text(PRELUDE + body)
    with pytest.raises(BadModel) as caught:
        build("own_model:build", tmp_path)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("spec.model.")
    assert "\n" not in str(caught.value)


def test_a_missing_module_says_where_to_put_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadModel) as caught:
        build("own_model:build", tmp_path)
    assert str(caught.value).startswith(f"spec.model.kind: there is no module 'own_model' in {tmp_path}")
    assert "put the file beside the manifest" in str(caught.value)
