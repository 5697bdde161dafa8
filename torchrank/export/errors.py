"""The error of rankers that cannot leave."""


class NotExportable(ValueError):
    """A ranker has no form in a format; the message says why.

    Example:
        >>> import torchrank
        >>> try:
        ...     torchrank.RandomRanker(3).export("model.onnx")
        ... except NotExportable as error:
        ...     print(error)
        RandomRanker has learned nothing, and its digits depend on the rounding of the machine
    """
