"""A decoder of one layer as an ONNX graph with past inputs, made with onnx.helper alone."""

import numpy as np

VOCAB, WIDTH, LONGEST = 97, 8, 64


def write_decoder(path, *, first_row="past_length"):
    """Write the graph in float64; its causal triangle begins at the row of this name."""
    from onnx import TensorProto, helper, numpy_helper, save

    draw = np.random.default_rng(0)
    sizes = {"embed": (VOCAB, WIDTH), "place": (LONGEST, WIDTH), "head": (WIDTH, VOCAB)}
    sizes |= {name: (WIDTH, WIDTH) for name in ("wq", "wk", "wv")}
    held = {name: draw.standard_normal(size) / size[0] ** 0.25 for name, size in sizes.items()}
    held |= {"one": np.array([1]), "zero": np.array(0), "step": np.array(1)}
    held |= {"never": np.array(-1e30), "two": np.array(2)}
    lines = """
        Gather embed input_ids > e
        Gather place position_ids > p
        Add e p > x
        MatMul x wq > q
        MatMul x wk > k
        MatMul x wv > v
        Unsqueeze q one > q4
        Unsqueeze k one > k4
        Unsqueeze v one > v4
        Concat past_key_values.0.key k4 > present.0.key
        Concat past_key_values.0.value v4 > present.0.value
        Transpose present.0.key > kt
        MatMul q4 kt > scores
        Shape past_key_values.0.key > past_shape
        Gather past_shape two > past_length
        Shape present.0.key > total_shape
        Gather total_shape two > total
        Sub total past_length > tokens
        Add FIRST tokens > last
        Range FIRST last step > rows
        Range zero total step > columns
        Unsqueeze rows one > rows2
        LessOrEqual columns rows2 > causal
        Cast attention_mask > real
        Unsqueeze real one > real3
        Unsqueeze real3 one > real4
        And causal real4 > seen
        Where seen scores never > masked
        Softmax masked > weights
        MatMul weights present.0.value > read4
        Squeeze read4 one > read
        Add x read > y
        MatMul y head > logits
    """.replace("FIRST", first_row)
    options = {
        "Concat": {"axis": 2},
        "Transpose": {"perm": [0, 1, 3, 2]},
        "Cast": {"to": TensorProto.BOOL},
        "Softmax": {"axis": -1},
    }
    nodes = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        kind, *given = line.partition(" > ")[0].split()
        output = line.partition(" > ")[2]
        nodes.append(helper.make_node(kind, given, [output], **options.get(kind, {})))
    past = ["batch", 1, "past", WIDTH]
    inputs = {"input_ids": ["batch", "tokens"], "attention_mask": ["batch", "total"]}
    inputs |= {"position_ids": ["batch", "tokens"]}
    told = [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in inputs.items()]
    told += [
        helper.make_tensor_value_info(f"past_key_values.0.{part}", TensorProto.DOUBLE, past)
        for part in ("key", "value")
    ]
    outputs = ("logits", "present.0.key", "present.0.value")
    graph = helper.make_graph(
        nodes,
        "decoder",
        told,
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in outputs],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
