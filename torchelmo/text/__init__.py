"""① Text → tokens → character ids, vocabularies and batches."""
