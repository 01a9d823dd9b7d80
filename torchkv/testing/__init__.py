"""What a tester needs of this twin beside its verbs; `torchkv.subject` puts it together.

Nothing of the product imports it.
"""
