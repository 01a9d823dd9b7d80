"""What a tester needs of this twin beside its verbs; `jaxkv.subject` puts it together.

Nothing of the product imports it.
"""
