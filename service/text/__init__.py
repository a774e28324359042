"""Text from decoders: a language model's hidden states in, tokens out of the fast graph decoder, OpenAI's shapes around it."""
