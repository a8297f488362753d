"""Training a biLM: prepare the text, run the loop, measure what was learnt."""
