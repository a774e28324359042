"""The fast graph decoder: top-K next tokens without the full softmax. Nothing public yet."""
