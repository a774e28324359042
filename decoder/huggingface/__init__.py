"""generate() of a transformers model with its output layer answered by a decoder.

    attached = attach(model, "head.decoder")     # causal and seq2seq models
    model.generate(...)                          # greedy, beams, top-k sampling: by the decoder; anything else: exactly
    attached.logprobs(input_ids)                 # of each token, without a table of all tokens
    detach(model)

Open first: attached.py. Neither torch nor transformers is imported before attach() is called.
"""

from decoder.huggingface.attached import Attached, attach, detach

__all__ = ["Attached", "attach", "detach"]
