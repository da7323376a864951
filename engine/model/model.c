#include "engine/model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *block; /* of the layer it belongs to */
} LINEARS[BT_LINEARS] = {
    [BT_LINEAR_Q] = {"q_proj", "self_attn"}, [BT_LINEAR_K] = {"k_proj", "self_attn"},
    [BT_LINEAR_V] = {"v_proj", "self_attn"}, [BT_LINEAR_O] = {"o_proj", "self_attn"},
    [BT_LINEAR_GATE] = {"gate_proj", "mlp"}, [BT_LINEAR_UP] = {"up_proj", "mlp"},
    [BT_LINEAR_DOWN] = {"down_proj", "mlp"},
};

const char *bt_linear_name(enum bt_linear_id id)
{
    BT_ASSERT(id >= 0 && id < BT_LINEARS);
    return LINEARS[id].name;
}

const char *bt_linear_path(int32_t layer, enum bt_linear_id id, char *buf, size_t cap_bytes)
{
    BT_ASSERT(id >= 0 && id < BT_LINEARS);
    (void)snprintf(buf, cap_bytes, "model.layers.%d.%s.%s", layer, LINEARS[id].block,
                   LINEARS[id].name);
    return buf;
}

int32_t bt_linear_n_out(const struct bt_arch *a, enum bt_linear_id id)
{
    switch (id) {
    case BT_LINEAR_Q:
        return a->n_heads * a->head_dim;
    case BT_LINEAR_K:
    case BT_LINEAR_V:
        return a->n_kv_heads * a->head_dim;
    case BT_LINEAR_O:
    case BT_LINEAR_DOWN:
        return a->hidden;
    case BT_LINEAR_GATE:
        return a->mlp_gated ? a->intermediate : 0;
    case BT_LINEAR_UP:
        return a->intermediate;
    case BT_LINEARS:
        break;
    }
    BT_ASSERT(!"a linear layer");
    return 0;
}

int32_t bt_linear_n_in(const struct bt_arch *a, enum bt_linear_id id)
{
    return id == BT_LINEAR_O      ? a->n_heads * a->head_dim
           : id == BT_LINEAR_DOWN ? a->intermediate
                                  : a->hidden;
}

void bt_model_fini(struct bt_model *m)
{
    bt_arena_fini(&m->arena);
    *m = (struct bt_model){0};
}

void bt_model_note(struct bt_model *m, const char *fmt, ...)
{
    char text[BT_ERROR_MSG_BYTES];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    char *copy = m->n_notes < BT_MODEL_MAX_NOTES ? bt_arena_strdup(&m->arena, text) : NULL;
    if (copy != NULL) {
        m->notes[m->n_notes++] = copy;
    }
}

int64_t bt_model_weight_bytes(const struct bt_model *m)
{
    int64_t bytes = bt_linear_bytes(&m->embed) + bt_tensor_bytes(&m->final_norm);
    bytes += m->head_is_embed ? 0 : bt_linear_bytes(&m->lm_head);
    for (int32_t i = 0; i < m->config.arch.n_layers; i++) {
        const struct bt_layer *layer = &m->layers[i];
        bytes += bt_tensor_bytes(&layer->attn_norm) + bt_tensor_bytes(&layer->mlp_norm);
        bytes += bt_tensor_bytes(&layer->q_norm) + bt_tensor_bytes(&layer->k_norm);
        for (int id = 0; id < BT_LINEARS; id++) {
            bytes += bt_linear_bytes(&layer->linear[id]);
        }
    }
    return bytes;
}

void bt_model_describe(struct bt_model *m, enum bt_weight_format weights,
                       enum bt_act_format activations)
{
    struct bt_quant_config *q = &m->config.quant;
    int32_t bits = bt_weight_format_bits(weights);
    bool int8 = activations == BT_ACT_INT8_DYNAMIC || activations == BT_ACT_INT8_STATIC;
    BT_ASSERT(bits <= 8);
    m->config.arch.checkpoint = weights;
    if (q->layout == BT_QUANT_NONE) {
        q->layout = bits == 4 ? BT_QUANT_CT_PACKED : BT_QUANT_CT_INT;
    }
    q->weights = weights;
    q->activations = int8 ? activations : BT_ACT_DEFAULT;
    q->bits = bits;
    q->group_size = bt_weight_format_group(weights);
    q->symmetric = true;
    q->desc_act = false;
    q->lm_head = m->lm_head.quantised && !m->head_is_embed;
    for (int32_t i = 0; i < m->config.arch.n_layers; i++) {
        for (int id = 0; id < BT_LINEARS; id++) {
            const struct bt_linear *l = &m->layers[i].linear[id];
            q->symmetric = q->symmetric && (!l->quantised || l->q.zero == NULL);
            q->desc_act = q->desc_act || (l->quantised && l->q.perm != NULL);
        }
    }
}

struct mover {
    struct bt_arena *to;
    bool failed;
};

static void *moved(struct mover *v, const void *p, size_t bytes)
{
    if (p == NULL) {
        return NULL;
    }
    void *copy = bt_arena_take(v->to, bytes);
    if (copy == NULL) {
        v->failed = true;
        return NULL;
    }
    memcpy(copy, p, bytes);
    return copy;
}

static void move_tensor(struct mover *v, struct bt_tensor *t)
{
    t->p = moved(v, t->p, (size_t)bt_tensor_bytes(t));
}

static void move_linear(struct mover *v, struct bt_linear *l)
{
    move_tensor(v, &l->bias);
    if (!l->quantised) {
        move_tensor(v, &l->w);
        return;
    }
    struct bt_qweight *q = &l->q;
    size_t n_scales = q->scale_stride == 0 ? 1 : (size_t)q->n_out * (size_t)q->n_groups;
    q->q = moved(v, q->q, (size_t)q->n_out * bt_qweight_row_bytes(q));
    q->scale = moved(v, q->scale, n_scales * bt_dtype_bytes(q->scale_dtype));
    q->zero = moved(v, q->zero, (size_t)q->n_out * (size_t)q->n_groups);
    q->perm = moved(v, q->perm, (size_t)q->n_in * sizeof *q->perm);
}

enum bt_code bt_model_compact(struct bt_model *m, struct bt_error *err)
{
    struct bt_arena fresh;
    struct bt_model to = *m;
    struct mover v = {.to = &fresh};
    bt_arena_init(&fresh, 0);
    size_t n_layers = (size_t)m->config.arch.n_layers;
    to.layers = moved(&v, m->layers, n_layers * sizeof *m->layers);
    for (size_t i = 0; i < n_layers && to.layers != NULL; i++) {
        struct bt_layer *layer = &to.layers[i];
        move_tensor(&v, &layer->attn_norm);
        move_tensor(&v, &layer->mlp_norm);
        move_tensor(&v, &layer->q_norm);
        move_tensor(&v, &layer->k_norm);
        for (int id = 0; id < BT_LINEARS; id++) {
            move_linear(&v, &layer->linear[id]);
        }
    }
    move_linear(&v, &to.embed);
    move_tensor(&v, &to.final_norm);
    if (to.head_is_embed) {
        to.lm_head = to.embed;
    } else {
        move_linear(&v, &to.lm_head);
    }
    for (int32_t i = 0; i < to.n_notes; i++) {
        to.notes[i] = moved(&v, m->notes[i], strlen(m->notes[i]) + 1);
    }
    if (v.failed) {
        bt_arena_fini(&fresh);
        BT_FAIL(err, BT_ERR_NOMEM, 0, "weights: no memory for %lld bytes",
                (long long)bt_model_weight_bytes(m));
    }
    bt_arena_fini(&m->arena);
    *m = to;
    m->arena = fresh;
    return BT_OK;
}
