"""An adapter inside a model of sentence-transformers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchrank.errors import DataError
from torchrank.export.adapters.saved import SIDES, SIMILARITY_NAMES, SavedAdapter

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def add_to_sentence_transformer(model: SentenceTransformer, adapter: SavedAdapter) -> SentenceTransformer:
    """A model whose `encode_query` and `encode_document` give adapted vectors; needs the extra `text`.

    Each side is a route of a `Router`: the modules of the model, then a `Dense` layer, and `Normalize` before or after
    it where the adapter normalises. A side without a map keeps its vectors. `encode` without a task takes the route of
    the documents.

    Args:
        model: whose vectors the adapter was fitted to. It stays as it is, and shares its modules with the new model.
        adapter: of `load_adapter`.

    Returns:
        The adapted model, which can be saved, loaded and pushed as any other.

    Example:
        >>> import torch
        >>> from sentence_transformers import SentenceTransformer
        >>> from sentence_transformers.sentence_transformer.modules import StaticEmbedding
        >>> from tokenizers import Tokenizer, models
        >>> words = Tokenizer(models.WordLevel({"yes": 0, "no": 1}, unk_token="no"))
        >>> model = SentenceTransformer(modules=[StaticEmbedding(words, torch.eye(2).numpy())], device="cpu")
        >>> adapter = SavedAdapter(3 * torch.eye(2), None, normalise=None, similarity="inner")
        >>> adapted = add_to_sentence_transformer(model, adapter)
        >>> adapted.encode_query("yes"), adapted.encode_document("yes")
        (array([3., 0.], dtype=float32), array([1., 0.], dtype=float32))
    """
    modules, sentence_transformer = _library()
    routes = _routes(model, modules.Router)
    _check_width(model, adapter)
    for side, matrix in adapter.maps.items():
        dense = modules.Dense(
            adapter.inputs,
            adapter.outputs,
            bias=False,
            activation_function=None,
            init_weight=matrix.T.contiguous().clone(),
        )
        layers = [dense.to(model.dtype)]
        if adapter.normalise:
            layers.insert(0 if adapter.normalise == "vectors" else 1, modules.Normalize())
        routes[side] += layers
    adapted: SentenceTransformer = sentence_transformer(
        modules=[modules.Router.for_query_document(routes["query"], routes["document"])],
        device=str(model.device),
        prompts=dict(model.prompts),
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=SIMILARITY_NAMES[adapter.similarity],
    )
    return adapted.train(model.training)


def _library() -> tuple[Any, Any]:
    try:
        library = import_module("sentence_transformers")
    except ImportError as error:
        raise ImportError("models need sentence-transformers: pip install 'torchrank-ltr[text]'") from error
    try:
        modules = import_module("sentence_transformers.sentence_transformer.modules")
    except ImportError:  # before version 5.4
        modules = import_module("sentence_transformers.models")
    return modules, library.SentenceTransformer


def _routes(model: SentenceTransformer, router: type) -> dict[str, list[Any]]:
    """The modules of each side, of a model with routes for both or without routes."""
    first, *rest = model.children()
    if not isinstance(first, router):
        return {side: [first, *rest] for side in SIDES}
    routes: Any = first
    found: dict[str, Any] = dict(routes.sub_modules.items())
    if set(found) != set(SIDES) or getattr(first, "route_mappings", None):
        raise ValueError(f"the model has the routes {', '.join(found)}: an adapter needs query and document, or none")
    return {side: [*found[side], *rest] for side in SIDES}


def _check_width(model: SentenceTransformer, adapter: SavedAdapter) -> None:
    if model.truncate_dim is not None:
        raise ValueError("the model truncates its vectors after all modules: load it without truncate_dim")
    ask = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    width = ask()
    if width is not None and width != adapter.inputs:
        raise DataError(
            f"the vectors of the model have {width} numbers, the adapter takes {adapter.inputs}: it was fitted to "
            "those of another model"
        )
