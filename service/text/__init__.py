"""Text from decoders: hidden states of a language model, tokens of the fast graph decoder, OpenAI's shapes around them."""
