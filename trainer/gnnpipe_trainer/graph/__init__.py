"""From a manifest's graph to chunks: load, check, clean, cut with METIS, renumber, cache, memory-map."""

from gnnpipe_trainer.graph.cache import chunked_graph, mirrors_for
from gnnpipe_trainer.graph.chunks import ChunkedGraph
from gnnpipe_trainer.graph.data import BadGraph, GraphData
from gnnpipe_trainer.graph.sources import load_graph

__all__ = ["BadGraph", "ChunkedGraph", "GraphData", "chunked_graph", "load_graph", "mirrors_for"]
