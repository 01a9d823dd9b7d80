"""Where the twins do not mirror each other, and why."""

# reason -> findings, word by word. One that is no longer found is a failure too.
EXCEPTIONS: dict[str, list[str]] = {
    "JAX has to be told how to take a state apart; PyTorch keeps objects as they are": [
        "pytree.py: jaxkv has it, torchkv not",
    ],
    "jaxkv's matrices stand (in, out) or, as torchkv's all do, (out, in): a product for each": [
        "linear.py: by_rows: jaxkv has it, torchkv not",
        "linear.py: turned: jaxkv has it, torchkv not",
        "model.py: Turned: jaxkv has it, torchkv not",
    ],
    "XLA divides weights in a pass of its own; torchkv's softmax is PyTorch's kernel": [
        "ops.py: weigh: jaxkv has it, torchkv not",
    ],
    "every size is another program for XLA; PyTorch compiles nothing unless asked": [
        "testing/compiling.py: jaxkv has it, torchkv not",
    ],
    (
        "jaxkv's buffers have rank 3, rows and heads in one axis X, which XLA writes in place; "
        "torchkv's have rank 4"
    ): [
        (
            "caches/carried.py: Carried is class(out_XMH, peak_XM, total_XM) in jaxkv, "
            "class(out_BKMH, peak_BKM1, total_BKM1) in torchkv"
        ),
        (
            "caches/carried.py: add is (state, score_XMS, visible_XMS, weigh) in jaxkv, (state, "
            "score_BKMS, visible_B1MS, weigh) in torchkv"
        ),
        "caches/carried.py: start is (q_XMH) in jaxkv, (q_BKMH) in torchkv",
        (
            "caches/causal.py: attend is (q_BTNH, k_XTH, v_XTH, *, valid_BT, rule) in jaxkv, "
            "(q_BTNH, k_BTKH, v_BTKH, *, valid_BT, rule) in torchkv"
        ),
        (
            "caches/coded.py: QuantizedSite is class(k_code_XHE, k_scale_XHU, k_zero_XHU, "
            "v_code_XCY, v_scale_XCZ, v_zero_XCZ, k_ring_XHA, v_ring_XAH, form, slack) in "
            "jaxkv, class(k_code_BKHE, k_scale_BKHU, k_zero_BKHU, v_code_BKCY, v_scale_BKCZ, "
            "v_zero_BKCZ, k_ring_BKHA, v_ring_BKAH, form, slack) in torchkv"
        ),
        (
            "caches/coded.py: beside is (site, new_k_XTH, new_v_XTH) in jaxkv, (site, k_BTKH, "
            "v_BTKH) in torchkv"
        ),
        "caches/coded.py: take_keys is (x_XHC, place_BS) in jaxkv, (x_BKHC, place_BS) in torchkv",
        "caches/coded.py: take_values is (x_XCH, place_BS) in jaxkv, (x_BKCH, place_BS) in torchkv",
        (
            "caches/coded.py: write is (site, step, new_k_XTH, new_v_XTH) in jaxkv, (site, "
            "step, k_BTKH, v_BTKH) in torchkv"
        ),
        (
            "caches/per_token.py: PerTokenSite is class(k_code_XHC, k_scale_XC, v_code_XCH, "
            "v_scale_XC, form) in jaxkv, class(k_code_BKCH, k_scale_BKC, v_code_BKCH, "
            "v_scale_BKC, form) in torchkv"
        ),
        (
            "caches/ring.py: write is (k_XHA, v_XAH, new_k_XTH, new_v_XTH, step) in jaxkv, "
            "(k_BKHA, v_BKAH, k_BTKH, v_BTKH, step) in torchkv"
        ),
        (
            "caches/laps.py: products is (view, k_XHS, key_BS, *, sinks, ring) in jaxkv, (view, "
            "k_BKSH, key_BS, *, sinks, ring) in torchkv"
        ),
        (
            "caches/sinks.py: SinkSite is class(k_XHS, v_XSH, form, slack, turned_by) in jaxkv, "
            "class(k_BKSH, v_BKSH, form, slack, turned_by) in torchkv"
        ),
        (
            "caches/view.py: View is class(step, q_XMH, span, heads, rule, bias) in jaxkv, "
            "class(step, q_BKMH, span, heads, rule, bias) in torchkv"
        ),
        (
            "caches/view.py: View.scored is (self, product_XMS, key_BS) in jaxkv, (self, "
            "product_BKMS, key_BS) in torchkv"
        ),
        (
            "caches/contiguous.py: ContiguousSite is class(k_XHS, v_XSH, rank) in jaxkv, "
            "class(k_BKSH, v_BKSH, rank) in torchkv"
        ),
        (
            "caches/cross.py: CrossSite is class(k_XHS, v_XSH, source_length_U) in jaxkv, "
            "class(k_UKSH, v_UKSH, source_length_U) in torchkv"
        ),
        (
            "caches/paged.py: PagedSite is class(k_YHP, v_YPH, num_kv_heads, rank) in jaxkv, "
            "class(k_AKPH, v_AKPH, rank) in torchkv"
        ),
        (
            "caches/page_reads.py: Carried is class(out_XMH, peak_XM, total_XM) in jaxkv, "
            "class(out_BKMH, peak_BKM1, total_BKM1) in torchkv"
        ),
        (
            "caches/slots.py: attend_slots is (q_BTNH, k_XHS, v_XSH, *, query_BT, key_BS, "
            "valid_BS, rule, clean, bias=) in jaxkv, (q_BTNH, k_BKSH, v_BKSH, *, query_BT, "
            "key_BS, valid_BS, rule, clean, bias=) in torchkv"
        ),
        (
            "caches/slots.py: by_row is (k_XHS, v_XSH, *, rows) in jaxkv, (k_BKSH, v_BKSH) in "
            "torchkv"
        ),
        (
            "caches/slots.py: expanded is (k_XHS, expand, *, rows) in jaxkv, (k_BKSH, expand) "
            "in torchkv"
        ),
        (
            "caches/slots.py: values_of is (k_XHS, v_XSH, *, rank) in jaxkv, (k_BKSH, v_BKSH, *, "
            "rank) in torchkv"
        ),
        (
            "caches/slots.py: gather_rows is (x_X, rows_B, *, batch) in jaxkv, (x_B, rows_B) "
            "in torchkv"
        ),
        (
            "caches/slots.py: poison is (k_XHS, v_XSH, valid_BS) in jaxkv, (k_BKSH, v_BKSH, "
            "valid_BS) in torchkv"
        ),
        (
            "caches/slots.py: scrub_values is (v_XSH, valid_BS) in jaxkv, (v_BKSH, valid_BS) "
            "in torchkv"
        ),
        (
            "caches/window.py: WindowSite is class(k_XHC, v_XCH, window, slack) in jaxkv, "
            "class(k_BKCH, v_BKCH, window, slack) in torchkv"
        ),
        ("ops.py: score is (q_XMH, k_XHS, *, rule) in jaxkv, (q_BKMH, k_BKSH, *, rule) in torchkv"),
        (
            "ops.py: softmax is (score_XMS, visible_XMS) in jaxkv, (score_BKMS, visible_B1MS) "
            "in torchkv"
        ),
        (
            "ops.py: spread is (visible_BTS, *, num_kv_heads, groups) in jaxkv, (visible_BTS, "
            "*, groups) in torchkv"
        ),
        "ops.py: ungroup is (o_XMH, *, rows, tokens) in jaxkv, (o_BKMH, *, tokens) in torchkv",
    ],
    "writing in place needs the real tokens by index, writing by value drops the others": [
        "caches/coded.py: put_keys: jaxkv has it, torchkv not",
        "caches/coded.py: put_values: jaxkv has it, torchkv not",
        (
            "caches/slots.py: write_slice is (k_XHS, v_XSH, new_k_XTH, new_v_XTH, *, start, "
            "keep_X) in jaxkv, (k_BKSH, v_BKSH, new_k_BTKH, new_v_BTKH, *, start) in torchkv"
        ),
        (
            "caches/slots.py: write_slots is (k_XHS, v_XSH, new_k_XTH, new_v_XTH, *, slot_BT) "
            "in jaxkv, (k_BKSH, v_BKSH, new_k_BTKH, new_v_BTKH, *, row_P, token_P, slot_P) in "
            "torchkv"
        ),
    ],
    (
        "torchkv writes in place: an epoch tells which of the caches that share buffers still "
        "stands"
    ): [
        (
            "caches/state.py: Cache is class(length_B, peak_B, overflow_B, shared, sites, "
            "capacity) in jaxkv, class(length_B, peak_B, overflow_B, shared, sites, capacity, "
            "epoch=) in torchkv"
        ),
        "caches/state.py: Epoch: torchkv has it, jaxkv not",
        "caches/state.py: Ledger: torchkv has it, jaxkv not",
        (
            "caches/state.py: Step is class(length_B, count_B, excess_B, position_BT, "
            "valid_BT, shared, fresh, rectangular, clean) in jaxkv, class(length_B, count_B, "
            "excess_B, position_BT, valid_BT, shared, fresh, rectangular, clean, epoch=) in "
            "torchkv"
        ),
    ],
    "torchkv reads a step's lengths on the host once; under jit they are never known": [
        (
            "caches/pages.py: PagePlan is class(pages, source_B, target_B, owner_A, column_A, "
            "left_BC, left_column_BC, left) in jaxkv, class(pages, source_B, target_B) in torchkv"
        ),
        "caches/pages.py: PagePlan.copies: torchkv has it, jaxkv not",
        "caches/pages.py: PagePlan.left: torchkv has it, jaxkv not",
        "caches/pages.py: PagePlan.owners: torchkv has it, jaxkv not",
        "caches/coded.py: tiles: torchkv has it, jaxkv not",
        "caches/laps.py: pieces: torchkv has it, jaxkv not",
        "caches/ring.py: latest: torchkv has it, jaxkv not",
        "caches/slots.py: write_tokens: torchkv has it, jaxkv not",
        "caches/state.py: Step.oldest: torchkv has it, jaxkv not",
        "caches/state.py: Step.real: torchkv has it, jaxkv not",
        "caches/state.py: Step.spans: torchkv has it, jaxkv not",
        "caches/state.py: Step.start: torchkv has it, jaxkv not",
        "caches/state.py: Step.used: torchkv has it, jaxkv not",
    ],
    (
        "torchkv copies between fixed buffers, and takes PyTorch's fused attention where it "
        "applies; jaxkv asks for cuDNN's on a GPU"
    ): [
        "caches/fused.py: jaxkv has it, torchkv not",
        "caches/slots.py: attend_all: torchkv has it, jaxkv not",
        "caches/slots.py: copy_front: torchkv has it, jaxkv not",
    ],
    "torchkv's layers compute in one room after the other, in few calls; XLA plans both itself": [
        (
            "caches/coded.py: score_tile is (site, q_XMH, start, size) in jaxkv, (site, step, "
            "q_BKMH, start, size) in torchkv"
        ),
        (
            "caches/coded.py: weigh_tile is (site, weight_XMS, start, size) in jaxkv, (site, step, "
            "weight_BKMS, start, size, *, all_seen=) in torchkv"
        ),
        "caches/slots.py: first: torchkv has it, jaxkv not",
        "caches/slots.py: turned: torchkv has it, jaxkv not",
        "caches/state.py: Step.room: torchkv has it, jaxkv not",
        "caches/state.py: Step.rooms: torchkv has it, jaxkv not",
    ],
    "torchkv runs eagerly, so it keeps and counts no programs": [
        "programs.py: jaxkv has it, torchkv not",
    ],
    "JAX has to be told which buffers a program may reuse; a torchkv cache passed on is consumed": [
        (
            "rounds.py: run_rounds is (params, ids_BT, count_B, terms, cache, draft, watch, *, "
            "config, lookup, k, donate, **sizes) in jaxkv, (params, ids_BT, count_B, terms, cache, "
            "draft, watch, *, config, lookup, k, **sizes) in torchkv"
        ),
    ],
    "torchkv compiles a step of decode on request, in a form of its own; jaxkv compiles all": [
        "caches/fixed.py: torchkv has it, jaxkv not",
        "compiled.py: torchkv has it, jaxkv not",
    ],
    "torch has to be told the device of each new tensor": [
        ("request.py: device_arrays is (request) in jaxkv, (request, device) in torchkv"),
        ("request.py: device_sources is (request) in jaxkv, (request, device) in torchkv"),
    ],
}
