/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* problem_keys.c: names of everything in a problem string, its defaults, and its grammar in words. Contract: problem.h. */
#include <string.h>

#include "problem_keys.h"

const char *const problem_mask_names[] = {"none", "causal_tl", "causal_br", "window_tl", "window_br", NULL};
const char *const problem_flag_names[] = {"log",
                                          "scale_explicit",
                                          "deterministic",
                                          "batch_invariant",
                                          "workspace_zeroed",
                                          "accumulate_dq",
                                          "accumulate_dk",
                                          "accumulate_dv",
                                          NULL};
const char *const problem_keep_names[] = {"none", "random", "tree", "diagonal", NULL};
const char problem_axis_letters[] = "bhqk";

static const char *const layout_names[] = {"bhsd", "bshd", "sbhd", "qkv", "kv", NULL};
static const char *const table_names[] = {"shuffled", "ordered", NULL};
static const char *const data_names[] = {"normal", "uniform", "outlier",    "negative",   "huge",
                                         "tiny",   "zeros",   "ones",       "index",      "needle",
                                         "nan",    "inf",     "nan_hidden", "inf_hidden", NULL};

const char *const problem_type_names[] = {"fp32",     "fp16", "bf16",  "fp64",  "e4m3fn", "e5m2", "e4m3fnuz",
                                          "e5m2fnuz", "int8", "int32", "int64", "uint8",  "bool", NULL};
static const int32_t type_values[] = {KILN_FLOAT32,       KILN_FLOAT16,     KILN_BFLOAT16,        KILN_FLOAT64,
                                      KILN_FLOAT8_E4M3FN, KILN_FLOAT8_E5M2, KILN_FLOAT8_E4M3FNUZ, KILN_FLOAT8_E5M2FNUZ,
                                      KILN_INT8,          KILN_INT32,       KILN_INT64,           KILN_UINT8,
                                      KILN_BOOL};

static const char *const op_names[] = {"softmax_forward", "softmax_backward", "attention_forward", "attention_backward",
                                       "attention_merge"};

static const char *const slot_names[SLOT_COUNT] = {"q",
                                                   "k",
                                                   "v",
                                                   "o",
                                                   "softmax_lse",
                                                   "q2",
                                                   "k2",
                                                   "bias",
                                                   "alibi_slopes",
                                                   "sinks",
                                                   "attn_mask",
                                                   "q_starts",
                                                   "k_starts",
                                                   "cu_seqlens_q",
                                                   "cu_seqlens_k",
                                                   "seqused_q",
                                                   "seqused_k",
                                                   "leftpad_k",
                                                   "block_table",
                                                   "cache_batch_idx",
                                                   "dropout_ptr",
                                                   "device_status",
                                                   "dout",
                                                   "dlse",
                                                   "dq",
                                                   "dk",
                                                   "dv",
                                                   "dq2",
                                                   "dk2",
                                                   "dbias",
                                                   "dsinks",
                                                   "x",
                                                   "y",
                                                   "dy",
                                                   "dx",
                                                   "o_parts",
                                                   "lse_parts"};

#define AT(field) offsetof(problem_spec, field)
const problem_key problem_keys[] = {
    {"out", KEY_TYPE, AT(out), FOR_ALL, NULL},
    {"grad", KEY_TYPE, AT(grad), FOR_BACKWARD | 1 << KILN_OP_SOFTMAX_BACKWARD, NULL},
    {"layout", KEY_NAME, AT(layout), FOR_ATTENTION | FOR_MERGE, layout_names},
    {"row_pad", KEY_INT, AT(row_pad), FOR_ALL, NULL},
    {"inner", KEY_INT, AT(inner), FOR_ALL, NULL},
    {"offset", KEY_INT, AT(offset), FOR_ALL, NULL},
    {"alias_kv", KEY_SWITCH, AT(alias_kv), FOR_ATTENTION, NULL},
    {"scale", KEY_DOUBLE, AT(scale), FOR_SOFTMAX | FOR_ATTENTION, NULL},
    {"softcap", KEY_DOUBLE, AT(softcap), FOR_ATTENTION, NULL},
    {"bias", KEY_AXES, AT(bias), FOR_ATTENTION, NULL},
    {"alibi", KEY_AXES, AT(alibi), FOR_ATTENTION, NULL},
    {"sinks", KEY_SWITCH, AT(sinks), FOR_ATTENTION | FOR_MERGE, NULL},
    {"attn_mask", KEY_KEEP, AT(keep), FOR_ATTENTION, NULL},
    {"attn_mask_axes", KEY_AXES, AT(keep_axes), FOR_ATTENTION, NULL},
    {"mask_len", KEY_INT, AT(mask_len), FOR_ATTENTION, NULL},
    {"q_start", KEY_INT, AT(q_start), FOR_ATTENTION, NULL},
    {"q_step", KEY_INT, AT(q_step), FOR_ATTENTION, NULL},
    {"k_start", KEY_INT, AT(k_start), FOR_ATTENTION, NULL},
    {"k_step", KEY_INT, AT(k_step), FOR_ATTENTION, NULL},
    {"q_starts", KEY_LIST, AT(q_starts), FOR_ATTENTION, NULL},
    {"k_starts", KEY_LIST, AT(k_starts), FOR_ATTENTION, NULL},
    {"lens_q", KEY_LIST, AT(lens_q), FOR_ATTENTION, NULL},
    {"lens_k", KEY_LIST, AT(lens_k), FOR_ATTENTION, NULL},
    {"pack_gap", KEY_INT, AT(pack_gap), FOR_ATTENTION, NULL},
    {"page", KEY_INT, AT(page_size), FOR_ATTENTION, NULL},
    {"table", KEY_NAME, AT(table), FOR_ATTENTION, table_names},
    {"spare_pages", KEY_INT, AT(spare_pages), FOR_ATTENTION, NULL},
    {"seqused_q", KEY_LIST, AT(seqused_q), FOR_ATTENTION, NULL},
    {"seqused_k", KEY_LIST, AT(seqused_k), FOR_ATTENTION, NULL},
    {"leftpad_k", KEY_LIST, AT(leftpad_k), FOR_ATTENTION, NULL},
    {"cache_batch_idx", KEY_LIST, AT(cache_batch_idx), FOR_ATTENTION, NULL},
    {"cache_batch", KEY_INT, AT(cache_batch), FOR_ATTENTION, NULL},
    {"dropout", KEY_DOUBLE, AT(dropout_p), FOR_ATTENTION, NULL},
    {"dropout_seed", KEY_UINT, AT(dropout_seed), FOR_ATTENTION, NULL},
    {"dropout_offset", KEY_UINT, AT(dropout_offset), FOR_ATTENTION, NULL},
    {"dropout_ptr", KEY_SWITCH, AT(dropout_ptr), FOR_ATTENTION, NULL},
    {"lse", KEY_SWITCH, AT(lse), 1 << KILN_OP_ATTENTION_FORWARD | FOR_MERGE | 1 << KILN_OP_SOFTMAX_FORWARD, NULL},
    {"status", KEY_SWITCH, AT(status), FOR_ATTENTION, NULL},
    {"dlse", KEY_SWITCH, AT(dlse), FOR_BACKWARD, NULL},
    {"dbias", KEY_SWITCH, AT(dbias), FOR_BACKWARD, NULL},
    {"dsinks", KEY_SWITCH, AT(dsinks), FOR_BACKWARD, NULL},
    {"parts", KEY_INT, AT(parts), FOR_MERGE, NULL},
    {"data", KEY_NAME, AT(data), FOR_ALL, data_names},
    {"seed", KEY_UINT, AT(seed), FOR_ALL, NULL},
    {"flags", KEY_FLAGS, AT(flags), FOR_ALL, NULL},
    {"num_splits", KEY_INT, AT(num_splits), FOR_ATTENTION, NULL},
    {"max_sms", KEY_INT, AT(max_sms), FOR_ALL, NULL},
    {"algorithm", KEY_TEXT, AT(algorithm), FOR_ALL, NULL},
};
const size_t problem_key_count = sizeof problem_keys / sizeof *problem_keys;
_Static_assert(sizeof problem_keys / sizeof *problem_keys <= PROBLEM_KEYS_MAX, "raise PROBLEM_KEYS_MAX");

const char *problem_key_lacks(const problem_key *key, const problem_spec *spec)
{
    switch (key->offset) {
    case AT(keep_axes):
    case AT(mask_len): return spec->keep != KEEP_NONE ? NULL : "attn_mask";
    case AT(pack_gap):
        return spec->lens_q.kind != LIST_ABSENT || spec->lens_k.kind != LIST_ABSENT ? NULL : "lens_q or lens_k";
    case AT(table):
    case AT(spare_pages): return spec->page_size != 0 ? NULL : "page";
    case AT(dropout_seed):
    case AT(dropout_offset):
    case AT(dropout_ptr): return spec->dropout_p != 0 ? NULL : "dropout";
    default: return NULL;
    }
}

problem_spec problem_default(kiln_op op)
{
    problem_spec spec;
    memset(&spec, 0, sizeof spec); /* spares the padding from being indeterminate: specs may be compared and hashed */
    spec.op = op;
    spec.type = KILN_FLOAT32;
    spec.batch = spec.heads = spec.heads_k = spec.seqlen_q = spec.seqlen_k = spec.d = spec.d_v = 1;
    spec.inner = 1;
    spec.keep_axes = AXIS_BATCH | AXIS_HEAD | AXIS_QUERY | AXES_PRESENT;
    spec.spare_pages = 1;
    spec.lse = 1;
    spec.parts = 2;
    return spec;
}

const char *problem_slot_name(problem_slot slot)
{
    return slot >= 0 && slot < SLOT_COUNT ? slot_names[slot] : "?";
}

const char *problem_op_name(kiln_op op)
{
    return op >= 0 && op < KILN_OP_COUNT ? op_names[op] : "?";
}

kiln_op problem_op_find(const char *name)
{
    int op = 0;
    while (op < KILN_OP_COUNT && strcmp(op_names[op], name) != 0)
        op++;
    return (kiln_op)op;
}

const char *problem_type_name(int32_t type)
{
    for (size_t i = 0; problem_type_names[i] != NULL; i++)
        if (type_values[i] == type)
            return problem_type_names[i];
    return "?";
}

int32_t problem_type_find(const char *name)
{
    for (size_t i = 0; problem_type_names[i] != NULL; i++)
        if (strcmp(problem_type_names[i], name) == 0)
            return type_values[i];
    return 0;
}

const char *problem_data_name(int32_t data)
{
    return data >= 0 && data < DATA_COUNT ? data_names[data] : "?";
}

const char *problem_help(void)
{
    return "A problem is one line:   [operation:]shape:type[:mask][:key=value]...\n"
           "\n"
           "  b2h32k8q4096k4096d128:bf16:causal_br\n"
           "  attention_backward:b1h4q100k130d64:fp32:window_br=16,0:softcap=30:dlse\n"
           "  b3h2q64k64d32:fp16:lens_q=64,1,0:lens_k=random:seed=7\n"
           "  softmax_forward:r4x128n1000:fp32:flags=log\n"
           "\n"
           "operation   attention_forward (meant when none is written), attention_backward, attention_merge,\n"
           "            softmax_forward, softmax_backward\n"
           "shape       attention: b batch, h heads, k heads_k (before q), q seqlen_q, k seqlen_k (after q), d head "
           "size,\n"
           "            v head size of the values, x head size of the second score operand (MLA).\n"
           "            Left out: b1 h1, heads_k = heads, seqlen_k = seqlen_q, v = d, no x. q and d must be there.\n"
           "            merge: b, h, q, d.   softmax: r4x128 outer axes (may be left out), n length of a row.\n"
           "type        fp32 fp16 bf16 (fp64, int8, e4m3fn ... are understood, and refused by the library)\n"
           "mask        none, causal_tl, causal_br (top left, bottom right), window_tl=LEFT,RIGHT, "
           "window_br=LEFT,RIGHT;\n"
           "            inf = unbounded\n"
           "\n"
           "Scores      scale=0.1  softcap=30  bias=bhqk (the axes it has; others are of size 1; bias=1 for none)\n"
           "            alibi=h or bh  sinks  flags=scale_explicit\n"
           "attn_mask   attn_mask=0.7 (share of visible keys), tree, diagonal   attn_mask_axes=bhq   mask_len=16\n"
           "Positions   q_start= q_step= k_start= k_step=   q_starts=LIST k_starts=LIST (per sequence)\n"
           "Packed      lens_q=LIST lens_k=LIST (q and k of the shape are the upper bounds), pack_gap=N unused rows at "
           "both\n"
           "            ends\n"
           "Lengths     seqused_q=LIST seqused_k=LIST leftpad_k=LIST cache_batch_idx=LIST cache_batch=N\n"
           "Paged       page=16 (page size)  table=shuffled or ordered  spare_pages=1\n"
           "Dropout     dropout=0.1 dropout_seed=1 dropout_offset=0 dropout_ptr (seed and offset in device memory)\n"
           "Outputs     out=fp32 (type of o, y)  lse=off  status (device_status)  grad=fp32 (type of gradients)\n"
           "Backward    dlse  dbias  dsinks  flags=accumulate_dq+accumulate_dk+accumulate_dv+deterministic\n"
           "Merge       parts=4\n"
           "Memory      layout=bhsd, bshd, sbhd, qkv or kv (slices of one fused projection)  row_pad=3 (elements after "
           "each\n"
           "            row)  inner=2 (stride of the last axis)  offset=5 (byte_offset, in elements)  alias_kv (v lies "
           "in k)\n"
           "One tensor  NAME.type=fp32  NAME.strides=4096,128,128,1 (may be 0 or negative)  NAME.offset=3\n"
           "            with the names of kiln.h: q k v o softmax_lse bias attn_mask dout dq x y dy dx ...\n"
           "Values      data=normal uniform outlier negative huge tiny zeros ones index needle nan inf nan_hidden "
           "inf_hidden\n"
           "            seed=1\n"
           "Running     algorithm=flash2  num_splits=4  max_sms=1  flags=batch_invariant+workspace_zeroed\n"
           "\n"
           "LIST is numbers, one per sequence (3,5,0; none when the batch is 0), or random (chosen by the seed), or "
           "full "
           "(all\n"
           "of the length). An option without a value is switched on. Nothing may be given twice, or without what "
           "gives "
           "it an\n"
           "effect. Rows outside every sequence, padding and unused pages hold "
           "NaN.\n";
}
