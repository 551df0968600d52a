#include "contract/contract_classes.h"

enum { AROUND = 4096, HEAD_AROUND = 96 };

const gac_tiers *gac_side_tiers(const gac_side *s, gac_op_axis seen)
{
    return seen == GAC_OP_SDPA_HEAD ? &s->rules->sdpa.tiers : &s->rules->gemm[seen].tiers;
}

bool gac_side_aligns(const gac_side *s, gac_op_axis seen, int64_t size)
{
    const gac_tiers *tiers = gac_side_tiers(s, seen);
    return tiers->tier[gac_tiers_pick(tiers, size)].aligned;
}

static gac_slot find_slot(const gac_side *s, gac_op_axis seen, int64_t size)
{
    gac_slot out = { .tier = gac_tiers_pick(gac_side_tiers(s, seen), size) };
    out.instead = gac_contract_instead(s->contract, s->rules, seen, out.tier);
    if (out.instead)
        out.instead_tier = gac_tiers_pick(out.instead, size);
    return out;
}

static bool is_slot(const gac_slot *x, const gac_slot *y)
{
    return x->tier == y->tier && x->instead_tier == y->instead_tier;
}

/* What a class must be a multiple of, and what it must not. */
typedef struct multiples {
    int64_t own;
    int64_t next[4];
    int n_next;
} multiples;

static void add_tier(multiples *m, const gac_tiers *tiers, int tier)
{
    if (!gac_lcm_i64(m->own, tiers->tier[tier].multiple, &m->own))
        m->own = 1;
    if (tier == 0)
        return;
    int64_t next = tiers->tier[tier - 1].multiple;
    int kept = 0;
    for (int i = 0; i < m->n_next; i++) {
        if (next % m->next[i] == 0)
            return; /* the larger follows from the smaller */
        if (m->next[i] % next != 0)
            m->next[kept++] = m->next[i];
    }
    m->next[kept] = next;
    m->n_next = kept + 1;
}

static void add_slot(multiples *m, const gac_tiers *tiers, const gac_slot *s)
{
    add_tier(m, tiers, s->tier);
    if (s->instead)
        add_tier(m, s->instead, s->instead_tier);
}

static void name_class(const gac_tiers *a, const gac_tiers *b, gac_size_class *c)
{
    multiples m = { .own = 1 };
    add_slot(&m, a, &c->in_a);
    add_slot(&m, b, &c->in_b);
    size_t used = m.own == 1
                      ? (size_t)snprintf(c->text, sizeof c->text, "sizes")
                      : (size_t)snprintf(c->text, sizeof c->text,
                                         "sizes that are multiples of %lld", (long long)m.own);
    for (int i = 0; i < m.n_next && used < sizeof c->text; i++)
        used += (size_t)snprintf(c->text + used, sizeof c->text - used, "%s %lld",
                                 i > 0       ? " or"
                                 : m.own > 1 ? " but not of"
                                             : " that are no multiples of",
                                 (long long)m.next[i]);
    if (m.own == 1 && m.n_next == 0)
        snprintf(c->text, sizeof c->text, "all sizes");
}

/* Which of the classes has the slots of c; -1 for none. */
static int find_known(const gac_size_class *classes, int n, const gac_size_class *c)
{
    for (int i = 0; i < n; i++)
        if (is_slot(&classes[i].in_a, &c->in_a) && is_slot(&classes[i].in_b, &c->in_b))
            return i;
    return -1;
}

int gac_find_classes(const gac_side *a, const gac_side *b, gac_op_axis seen,
                     gac_size_class out[GAC_MAX_CLASSES])
{
    int n = 0;
    int64_t reach = 1, around = seen == GAC_OP_SDPA_HEAD ? HEAD_AROUND : AROUND;
    const gac_tiers *in_a = gac_side_tiers(a, seen), *in_b = gac_side_tiers(b, seen);
    if (!gac_lcm_i64(in_a->tier[0].multiple, in_b->tier[0].multiple, &reach))
        reach = 1;
    reach = reach > 8192 ? 8192 : reach;
    for (int64_t v = around; v < around + 2 * reach && n < GAC_MAX_CLASSES; v++) {
        gac_size_class c = { .in_a = find_slot(a, seen, v), .in_b = find_slot(b, seen, v) };
        if (find_known(out, n, &c) >= 0)
            continue;
        c.example = v;
        name_class(in_a, in_b, &c);
        out[n++] = c;
    }
    return n;
}

int gac_class_of(const gac_side *a, const gac_side *b, gac_op_axis seen, int64_t size,
                 const gac_size_class *classes, int n)
{
    gac_size_class c = { .in_a = find_slot(a, seen, size), .in_b = find_slot(b, seen, size) };
    return find_known(classes, n, &c);
}
