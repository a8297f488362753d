"""Add vectors to a dataset of Hugging Face datasets (extra `datasets`)."""

from typing import Any

from torchelmo.bulk.batches import BatchEmbedder
from torchelmo.errors import missing_package


def embed_dataset(dataset: Any, *, batch_size: int = 256, num_proc: int | None = None, **options: Any) -> Any:
    """Return a dataset with the vectors of one of its columns.

    The result is cached as that of every `map`. Its fingerprint depends on the data, the weights and the settings, so a
    second call, in any process, finds it.

    Args:
        dataset: A `datasets.Dataset`.
        batch_size: Rows that are embedded together.
        num_proc: The number of processes. Each of them uses one thread.
        **options: Those of `BatchEmbedder`: model, column, layers, pool and others.

    Returns:
        The dataset with the column `vector` of fixed size; `vectors`, a list of vectors, without `pool`; `layer_0`,
        `layer_1`, … for all layers.

    Example:
        >>> import datasets
        >>> from torchelmo.bulk.datasets import embed_dataset
        >>> data = datasets.Dataset.from_dict({"text": ["I took a bow.", "Bow and arrow"]})
        >>> embed_dataset(data, layers="top").features["vector"].length
        384
    """
    try:
        from datasets import Features, List, Value
    except ImportError as error:
        raise missing_package("datasets", "datasets") from error
    if num_proc is not None and num_proc > 1:
        options.setdefault("threads", 1)
    embedder = BatchEmbedder(**options)
    vector = List(Value("float32"), length=embedder.dim)
    new = {name: vector if embedder.settings["pool"] else List(vector) for name in embedder.names}
    return dataset.map(
        embedder,
        batched=True,
        batch_size=batch_size,
        num_proc=num_proc,
        features=Features({**dataset.features, **new}),
        new_fingerprint=embedder.fingerprint(dataset._fingerprint),
        desc="embed",
    )
