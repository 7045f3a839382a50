"""The CPU stages between topics, as stateless Faust agents: context, tokenization, packing."""
