"""A linear adapter of embeddings that leaves: a folder of matrices, modules of sentence-transformers, whole files."""
