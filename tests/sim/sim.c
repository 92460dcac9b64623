/* Many agreements on one simulated clock, network and store. A seed is one run: it draws the job,
 * what fails in it, and what the surroundings do to it; the same seed replays the same run.
 *   sim [--seeds FIRST COUNT] [--seed N --verbose] */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/peers/agreement.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"

#define MSEC INT64_C(1000)
#define SEC INT64_C(1000000)
#define NODES_MAX 64
#define RANKS_MAX 16 /* of a node */
#define LAUNCHES_MAX 2
#define FAILURES_MAX 64
#define CLOCK_ERROR SEC /* of the store's time, as a node knows it */

/* ---- chance ---- */

static uint64_t random_state;

static uint64_t next_random(void) {
        uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}
static int64_t between(int64_t from, int64_t to) {
        return from + (int64_t)(next_random() % (uint64_t)(to - from + 1));
}
static bool chance(int percent) {
        return between(0, 99) < percent;
}

/* ---- the world ---- */

typedef enum Mode { MODE_STORE, MODE_BOTH, MODE_BUS, MODE_UNABLE, MODE_LOCAL, N_MODES } Mode;
static const char *const mode_names[N_MODES] = { "store", "store and bus", "bus",
                                                 "bus, a store that cannot decide", "local" };

typedef struct Process {
        int node, launch;
        Claim claim; /* times: the simulation's */
        ClaimState fate;
        int64_t event_usec; /* of its fate */
        bool is_started, has_decision, is_delivery_planned;
        Decision decision; /* as its row has it: boot clock of the node */
} Process;

typedef struct Node {
        int id;
        char instance_id[INSTANCE_ID_SIZE];
        Agreement *agreement; /* NULL: crashed */
        int64_t boot_usec;    /* boot clock minus the simulation's */
        unsigned epoch;       /* counts crashes: what was asked before is not answered */
        uint64_t timer;
        bool is_cut;  /* from the centre, while the partition lasts */
        bool is_dead; /* it crashed for good */
        unsigned n_requests, n_lists, n_sends;
} Node;

typedef struct Span {
        int64_t from, to;
} Span;

typedef struct StoredRecord {
        uint32_t n;
        int node;
        int64_t newest_usec;
        ClaimSet claims;
} StoredRecord;

typedef struct Stored { /* a failure at the store; by n */
        bool is_there, is_published;
        Decision d; /* opened: the simulation's */
        uint64_t published[NODES_MAX];
} Stored;

static struct World {
        uint64_t seed;
        Mode mode;
        int64_t now, end, settle_usec, window_usec;
        Node nodes[NODES_MAX];
        int n_nodes, n_ranks, n_launches;
        Process processes[NODES_MAX * RANKS_MAX * LAUNCHES_MAX];
        int n_processes;
        int64_t launched_usec[LAUNCHES_MAX], spread_usec[LAUNCHES_MAX];
        Stored stored[FAILURES_MAX];
        StoredRecord *records;
        int n_records;
        Decision names[FAILURES_MAX]; /* as first seen anywhere; of n */
        Span partition, outage;
        int outage_nodes; /* how many nodes are without the store: the first ones, all */
        int loss, doubling, lost_answers; /* percent */
        int64_t delay_usec, latency_usec;
        bool is_calm, has_stateless_crash, is_trickling, creator_dies;
        const char *fault;
        char fault_text[256];
} w;
static bool verbose;
static uint64_t total_events, total_requests, total_sends;

static __attribute__((format(printf, 1, 2))) void note(const char *format, ...) {
        va_list ap;
        if (!verbose)
                return;
        printf("# %9.3f ", (double)w.now / 1e6);
        va_start(ap, format);
        vprintf(format, ap);
        va_end(ap);
        putchar('\n');
}

static __attribute__((format(printf, 1, 2))) void fault(const char *format, ...) {
        va_list ap;
        if (w.fault)
                return;
        va_start(ap, format);
        vsnprintf(w.fault_text, sizeof w.fault_text, format, ap);
        va_end(ap);
        w.fault = w.fault_text;
        note("FAULT: %s", w.fault);
}

static bool is_within(const Span *s, int64_t t) {
        return t >= s->from && t < s->to;
}

static const char key[] = "0123456789abcdef";

/* ---- events ---- */

typedef enum EventKind {
        EVENT_TIMER,
        EVENT_MESSAGE,
        EVENT_EXECUTE, /* a request reaches the store */
        EVENT_ANSWER,  /* its answer reaches the node */
        EVENT_START,   /* of a process */
        EVENT_FATE,
        EVENT_DELIVERED,
        EVENT_CRASH,
        EVENT_RESTART,
} EventKind;

typedef struct Request {
        Action action;
        StoreOutcome outcome;
        ListedFailure listed[FAILURES_MAX];
        size_t n_listed;
        Decision read;
        int64_t opened_usec, newest_usec;
        ClaimSet claims; /* RECORD */
        uint64_t revisions;
} Request;

typedef struct Event {
        int64_t at;
        uint64_t number; /* of equal times the first one comes first */
        EventKind kind;
        int node, process;
        unsigned epoch;
        bool keeps_state;
        Message *message;
        Request *request;
} Event;

static Event *heap;
static size_t n_heap, heap_capacity;
static uint64_t n_events;

static bool is_before(const Event *a, const Event *b) {
        return a->at != b->at ? a->at < b->at : a->number < b->number;
}

static void *allocate(size_t size) {
        void *p = calloc(1, size);
        if (!p)
                abort();
        return p;
}

static uint64_t plan(Event e, int64_t at) {
        if (n_heap == heap_capacity) {
                heap_capacity = heap_capacity ? 2 * heap_capacity : 1024;
                if (!(heap = realloc(heap, heap_capacity * sizeof *heap)))
                        abort();
        }
        e.at = MAX(at, w.now);
        e.number = ++n_events;
        size_t i = n_heap++;
        for (; i > 0 && is_before(&e, &heap[(i - 1) / 2]); i = (i - 1) / 2)
                heap[i] = heap[(i - 1) / 2];
        heap[i] = e;
        return e.number;
}

static Event next_event(void) {
        const Event first = heap[0], last = heap[--n_heap];
        size_t i = 0;
        for (;;) {
                size_t child = 2 * i + 1;
                if (child >= n_heap)
                        break;
                if (child + 1 < n_heap && is_before(&heap[child + 1], &heap[child]))
                        child++;
                if (!is_before(&heap[child], &last))
                        break;
                heap[i] = heap[child];
                i = child;
        }
        heap[i] = last;
        return first;
}

static void event_done(Event *e) {
        free(e->message);
        if (e->request)
                claim_set_done(&e->request->claims);
        free(e->request);
}

/* ---- the store: its times are the simulation's; a node knows them with an error ---- */

static int64_t clock_error(void) {
        return between(-CLOCK_ERROR, CLOCK_ERROR);
}

static void check_name(const Decision *d) {
        if (d->n == 0 || d->n >= FAILURES_MAX) {
                if (d->n > 0)
                        fault("number %u", d->n);
                return;
        }
        Decision *known = &w.names[d->n];
        if (known->n == 0)
                *known = *d;
        else if (strcmp(known->cluster_id, d->cluster_id) != 0 ||
                 strcmp(known->date_time, d->date_time) != 0)
                fault("failure %u has two names: %s %s (%s), %s %s (%s)", d->n, known->cluster_id,
                      known->date_time, agreed_name(known->agreed), d->cluster_id, d->date_time,
                      agreed_name(d->agreed));
        if (!decision_name_is_valid(d))
                fault("failure %u has the name %s %s", d->n, d->cluster_id, d->date_time);
}

static uint64_t stored_revisions(uint32_t n, int node) {
        uint64_t sum = 0;
        for (int i = 0; i < w.n_records; i++)
                if (w.records[i].n == n && w.records[i].node == node)
                        for (size_t j = 0; j < w.records[i].claims.n; j++)
                                sum += w.records[i].claims.items[j].revision;
        return sum;
}

static void store_record(Request *q, int node) {
        StoredRecord *r = NULL;
        for (int i = 0; i < w.n_records && !r; i++)
                if (w.records[i].n == q->action.n && w.records[i].node == node &&
                    w.records[i].newest_usec == q->newest_usec)
                        r = &w.records[i];
        if (!r) {
                w.records = realloc(w.records, (size_t)(w.n_records + 1) * sizeof *w.records);
                if (!w.records)
                        abort();
                r = &w.records[w.n_records++];
                *r = (StoredRecord){ q->action.n, node, q->newest_usec, { 0 } };
        }
        claim_set_done(&r->claims);
        r->claims = q->claims;
        q->claims = (ClaimSet){ 0 };
}

static void store_list(Request *q) {
        for (uint32_t n = 1; n < FAILURES_MAX; n++) {
                ListedFailure l = { n, w.stored[n].is_there, w.stored[n].d.opened_usec, INT64_MIN };
                for (int i = 0; i < w.n_records; i++)
                        if (w.records[i].n == n)
                                l.newest_usec = MAX(l.newest_usec, w.records[i].newest_usec);
                if (l.has_decision || l.newest_usec != INT64_MIN)
                        q->listed[q->n_listed++] = l;
        }
}

static void store_publish(const Request *q, int node) {
        Stored *s = &w.stored[q->action.n];
        if (q->action.unless_listed && s->is_published &&
            s->published[node] == stored_revisions(q->action.n, node))
                return;
        s->is_published = true;
        for (int i = 0; i < w.n_nodes; i++)
                s->published[i] = stored_revisions(q->action.n, i);
}

static StoreOutcome execute(Request *q, int node) {
        const uint32_t n = q->action.n;
        Stored *s = &w.stored[n];

        if (n >= FAILURES_MAX) {
                fault("a request for number %u", n);
                return STORE_OUTCOME_UNREACHABLE;
        }
        switch (q->action.kind) {
        case ACTION_LIST:
                store_list(q);
                return STORE_OUTCOME_OK;
        case ACTION_READ:
                if (!s->is_there)
                        return STORE_OUTCOME_NOT_FOUND;
                q->read = s->d;
                return STORE_OUTCOME_OK;
        case ACTION_CREATE:
                if (w.mode == MODE_UNABLE)
                        return STORE_OUTCOME_UNABLE;
                if (s->is_there)
                        return STORE_OUTCOME_EXISTS;
                note("the store has %u: %s %s by %s", n, q->action.decision.cluster_id,
                     q->action.decision.date_time, q->action.decision.created_by);
                s->is_there = true;
                s->d = q->action.decision;
                s->d.opened_usec = q->opened_usec = w.now;
                check_name(&s->d);
                if (w.creator_dies && node > 0) {
                        w.nodes[node].is_dead = true;
                        plan((Event){ .kind = EVENT_CRASH, .node = node, .keeps_state = true },
                             w.now + between(0, 20 * SEC));
                }
                return STORE_OUTCOME_OK;
        case ACTION_RECORD:
                store_record(q, node);
                return STORE_OUTCOME_OK;
        case ACTION_PUBLISH:
                store_publish(q, node);
                return STORE_OUTCOME_OK;
        default:
                return STORE_OUTCOME_UNABLE;
        }
}

static void on_execute(Event *e) {
        Request *q = e->request;
        const bool is_out = is_within(&w.outage, w.now) && e->node < w.outage_nodes;

        q->outcome = STORE_OUTCOME_UNREACHABLE;
        if (!is_out || chance(w.lost_answers)) {
                const StoreOutcome outcome = execute(q, e->node);
                if (!is_out && !chance(w.lost_answers))
                        q->outcome = outcome;
        }
        Event answer = *e;
        answer.kind = EVENT_ANSWER;
        plan(answer, w.now + between(MSEC, w.latency_usec));
        e->request = NULL;
}

static void on_answer(const Event *e) {
        Node *node = &w.nodes[e->node];
        Request *q = e->request;
        Agreement *a = node->agreement;
        const int64_t offset = node->boot_usec + clock_error(), now = w.now + node->boot_usec;

        if (!a || e->epoch != node->epoch)
                return;
        for (size_t i = 0; i < q->n_listed; i++) {
                q->listed[i].opened_usec += offset;
                if (q->listed[i].newest_usec != INT64_MIN)
                        q->listed[i].newest_usec += offset;
        }
        q->read.opened_usec += offset;
        agreement_on_done(a, key, q->action.kind, q->action.n,
                          &(StoreResult){ .outcome = q->outcome,
                                          .listed = q->listed,
                                          .n_listed = q->n_listed,
                                          .decision = &q->read,
                                          .opened_usec = q->opened_usec + offset },
                          now);
}

/* ---- nodes ---- */

static Claim own_claim(const Process *p) {
        Claim c = p->claim;
        c.started_usec += w.nodes[p->node].boot_usec;
        c.event_usec += w.nodes[p->node].boot_usec;
        return c;
}

static void prepare_record(Node *node, Request *q) {
        const ClaimSet *claims = agreement_claims(node->agreement, key, q->action.n);
        const int64_t error = clock_error();

        q->newest_usec = INT64_MIN;
        for (size_t i = 0; claims && i < claims->n; i++) {
                Claim c = claims->items[i];
                if (strcmp(c.instance_id, node->instance_id) != 0)
                        continue;
                c.event_usec += error - node->boot_usec;
                c.started_usec += error - node->boot_usec;
                if (claim_is_failure(&c))
                        q->newest_usec = MAX(q->newest_usec, c.event_usec / 1000 * 1000);
                if (claim_set_add(&q->claims, &c) < 0)
                        abort();
        }
        if (q->claims.n == 0)
                fault("an empty record of %u is to be written", q->action.n);
}

static void send_message(const Node *from, const Message *m) {
        for (int i = 0; i < w.n_nodes; i++) {
                const bool is_cut =
                        is_within(&w.partition, w.now) && (from->is_cut || w.nodes[i].is_cut);
                if (i == from->id || (from->id != 0 && i != 0) || is_cut)
                        continue; /* a star: nothing is forwarded */
                for (int copies = chance(w.doubling) ? 2 : 1; copies > 0; copies--) {
                        if (chance(w.loss))
                                continue;
                        Message *copy = allocate(sizeof *copy);
                        const int64_t shift = w.nodes[i].boot_usec - from->boot_usec +
                                              between(-20 * MSEC, 20 * MSEC);
                        *copy = *m;
                        copy->decision.opened_usec += shift;
                        for (size_t j = 0; j < copy->n_claims; j++) {
                                copy->claims[j].event_usec += shift;
                                copy->claims[j].started_usec += shift;
                        }
                        plan((Event){ .kind = EVENT_MESSAGE, .node = i, .message = copy },
                             w.now + between(MSEC / 5, w.delay_usec));
                }
        }
}

static const char *const action_names[N_ACTION_KINDS] = { "none",   "list",    "read", "create",
                                                          "record", "publish", "send" };

static void check_placed(const Node *node, const Decision *d, const Claim *c) {
        const int64_t late = c->started_usec - d->opened_usec - 2 * SEC - 2 * CLOCK_ERROR;
        if (late > 100 * MSEC && strcmp(c->cluster_id, d->cluster_id) != 0)
                fault("node %d: pid %u started %.1f s too late for %u", node->id, c->pid,
                      (double)late / 1e6, d->n);
}

static void check_node(const Node *node) {
        AgreementFailure f;
        for (size_t i = 0; agreement_failure(node->agreement, i, &f); i++) {
                check_name(f.decision);
                for (size_t j = 0; j < f.claims->n; j++)
                        check_placed(node, f.decision, &f.claims->items[j]);
        }
}

/* What the glue does with a decision: the row keeps it, the bundle goes out. */
static void follow_decisions(Node *node) {
        for (int i = 0; i < w.n_processes; i++) {
                Process *p = &w.processes[i];
                if (p->node != node->id || p->claim.state != CLAIM_FAILED || !p->is_started)
                        continue;
                const Decision *d = agreement_find(node->agreement, key, &p->claim);
                if (!d && p->has_decision)
                        fault("node %d: pid %u has lost its decision", node->id, p->claim.pid);
                if (!d)
                        continue;
                if (p->has_decision && ((p->decision.n != d->n && p->decision.n != 0) ||
                                        strcmp(p->decision.cluster_id, d->cluster_id) != 0 ||
                                        strcmp(p->decision.date_time, d->date_time) != 0))
                        fault("node %d: pid %u was in %u and is in %u", node->id, p->claim.pid,
                              p->decision.n, d->n);
                if (!p->has_decision)
                        note("node %d: pid %u is in %u (%s)", node->id, p->claim.pid, d->n,
                             agreed_name(d->agreed));
                p->has_decision = true;
                p->decision = *d;
                if (!p->is_delivery_planned) {
                        p->is_delivery_planned = true;
                        plan((Event){ .kind = EVENT_DELIVERED, .process = i },
                             w.now + (w.is_calm ? 20 * SEC : between(SEC, 40 * SEC)));
                }
        }
}

static void pump(Node *node) {
        Action action;
        int64_t now = w.now + node->boot_usec;
        unsigned n = 0;

        if (!node->agreement)
                return;
        while (agreement_next_action(node->agreement, now, &action) != ACTION_NONE) {
                if (++n > 1000) {
                        fault("node %d: acts without end: %s", node->id, action_names[action.kind]);
                        return;
                }
                if (action.kind == ACTION_SEND) {
                        node->n_sends++;
                        send_message(node, action.message);
                        continue;
                }
                note("node %d: %s %u", node->id, action_names[action.kind], action.n);
                node->n_requests++;
                node->n_lists += action.kind == ACTION_LIST;
                Request *q = allocate(sizeof *q);
                q->action = action;
                if (action.kind == ACTION_RECORD)
                        prepare_record(node, q);
                plan((Event){ .kind = EVENT_EXECUTE,
                              .node = node->id,
                              .epoch = node->epoch,
                              .request = q },
                     w.now + between(MSEC, w.latency_usec));
        }
        follow_decisions(node);
        check_node(node);
        const int64_t t = agreement_next_time(node->agreement);
        if (t <= now)
                fault("node %d: something is due, but there is no action", node->id);
        if (t != AGREEMENT_NEVER)
                node->timer =
                        plan((Event){ .kind = EVENT_TIMER, .node = node->id }, t - node->boot_usec);
        else
                node->timer = 0;
}

static void claim(const Process *p) {
        const Node *node = &w.nodes[p->node];
        const Claim c = own_claim(p);

        if (node->agreement && agreement_claim(node->agreement, key, &c, w.mode == MODE_LOCAL,
                                               w.now + node->boot_usec) < 0)
                fault("node %d: a claim was refused", node->id);
}

static void start_agent(Node *node, bool keeps_state) {
        const AgreementOptions o = { node->instance_id, w.settle_usec, w.window_usec,
                                     next_random() };

        if (agreement_new(&node->agreement, &o) < 0)
                abort();
        (void)agreement_set_arbiter(node->agreement, key, w.mode != MODE_BUS);
        if (w.mode != MODE_STORE && w.mode != MODE_LOCAL)
                (void)agreement_set_role(node->agreement, key,
                                         node->id == 0 ? ROLE_CENTRE : ROLE_LEAF);
        for (int i = 0; i < w.n_processes; i++) {
                Process *p = &w.processes[i];
                if (p->node != node->id || !p->is_started)
                        continue;
                p->has_decision = p->has_decision && keeps_state;
                const Claim c = own_claim(p);
                if (!p->has_decision)
                        continue;
                if (agreement_restore(node->agreement, &p->decision, &c, w.now + node->boot_usec) <
                    0)
                        fault("node %d: a failure cannot be restored", node->id);
        }
        for (int i = 0; i < w.n_processes; i++)
                if (w.processes[i].node == node->id && w.processes[i].is_started &&
                    !w.processes[i].has_decision)
                        claim(&w.processes[i]);
}

static void on_event(Event *e) {
        Process *p = &w.processes[e->process];
        int node = e->node;

        switch (e->kind) {
        case EVENT_TIMER:
                if (e->number != w.nodes[node].timer)
                        return;
                break;
        case EVENT_MESSAGE:
                note("node %d hears %s: %zu claims, decision %u, %zu heard", node,
                     e->message->sender, e->message->n_claims, e->message->decision.n,
                     e->message->n_heard);
                if (w.nodes[node].agreement)
                        (void)agreement_hear(w.nodes[node].agreement, e->message,
                                             w.now + w.nodes[node].boot_usec);
                break;
        case EVENT_EXECUTE:
                on_execute(e);
                return;
        case EVENT_ANSWER:
                on_answer(e);
                break;
        case EVENT_START:
                p->is_started = true;
                p->claim.event_usec = w.now;
                node = p->node;
                claim(p);
                break;
        case EVENT_FATE:
                node = p->node;
                p->claim.state = p->fate;
                p->claim.event_usec = w.now;
                p->claim.revision++;
                p->claim.bundle_state =
                        p->fate == CLAIM_FAILED ? CLAIM_BUNDLE_PENDING : CLAIM_BUNDLE_NONE;
                claim(p);
                break;
        case EVENT_DELIVERED:
                node = p->node;
                p->claim.bundle_state = CLAIM_BUNDLE_DELIVERED;
                p->claim.revision++;
                claim(p);
                break;
        case EVENT_CRASH:
                note("node %d: crash%s", node, e->keeps_state ? "" : ", its state is lost");
                w.nodes[node].agreement = agreement_free(w.nodes[node].agreement);
                w.nodes[node].epoch++;
                if (w.nodes[node].is_dead)
                        return;
                plan((Event){ .kind = EVENT_RESTART, .node = node, .keeps_state = e->keeps_state },
                     w.now + between(SEC, 40 * SEC));
                return;
        case EVENT_RESTART:
                if (w.nodes[node].agreement || w.nodes[node].is_dead)
                        return;
                start_agent(&w.nodes[node], e->keeps_state);
        }
        pump(&w.nodes[node]);
}

/* ---- a run ---- */

static void plan_process(int node, int rank, int launch, int ids) {
        const int i = w.n_processes++;
        Process *p = &w.processes[i];
        const int64_t failure = w.launched_usec[launch] + 60 * SEC;
        const bool is_first = node == 0 && rank == 0;

        *p = (Process){ .node = node, .launch = launch };
        p->claim = (Claim){ .pid = (uint32_t)(1000 + i),
                            .start_ticks = (uint64_t)i + 1,
                            .revision = 1,
                            .rank = node * w.n_ranks + rank,
                            .world_size = (int64_t)w.n_nodes * w.n_ranks,
                            .started_usec = w.launched_usec[launch] + between(0, SEC) };
        snprintf(p->claim.boot_id, sizeof p->claim.boot_id, "%032d", node);
        memcpy(p->claim.instance_id, w.nodes[node].instance_id, INSTANCE_ID_SIZE);
        if (ids == 2 || (ids == 1 && chance(50)))
                snprintf(p->claim.cluster_id, CLUSTER_ID_SIZE, "%015dab", launch + 1);
        else
                snprintf(p->claim.cluster_id, CLUSTER_ID_SIZE, "%016d", 0);
        snprintf(p->claim.date_time, DATE_TIME_SIZE, "20260101-0%d%02d%02d", launch,
                 (int)between(0, 59), (int)between(0, 59));
        p->fate = is_first || chance(80) ? CLAIM_FAILED : chance(50) ? CLAIM_ENDED : CLAIM_ALIVE;
        p->event_usec = failure + (is_first ? 0 : between(0, w.spread_usec[launch]));
        plan((Event){ .kind = EVENT_START, .process = i }, p->claim.started_usec);
        if (p->fate == CLAIM_ALIVE && launch + 1 < w.n_launches) { /* the restart ends it */
                p->fate = CLAIM_ENDED;
                p->event_usec = w.launched_usec[launch + 1] - between(MSEC, 3 * SEC);
        }
        if (p->fate != CLAIM_ALIVE)
                plan((Event){ .kind = EVENT_FATE, .process = i }, p->event_usec);
}

static bool has_store(void) {
        return w.mode != MODE_BUS && w.mode != MODE_UNABLE;
}

static void draw_faults(void) {
        const int64_t start = w.launched_usec[0] + 40 * SEC;

        w.is_calm = chance(20);
        w.delay_usec = w.is_calm ? 20 * MSEC : between(MSEC, 800 * MSEC);
        w.latency_usec = w.is_calm ? 200 * MSEC : between(5 * MSEC, 2 * SEC);
        if (w.is_calm)
                return;
        w.loss = chance(50) ? (int)between(0, 30) : 0;
        w.doubling = chance(50) ? (int)between(0, 30) : 0;
        w.creator_dies = chance(15) && !w.is_trickling;
        w.lost_answers = chance(30) ? (int)between(1, 20) : 0;
        if (chance(40)) {
                w.partition.from = start + between(0, 40 * SEC);
                w.partition.to = w.partition.from + between(SEC, 90 * SEC);
                for (int i = 1; i < w.n_nodes; i++)
                        w.nodes[i].is_cut = chance(50);
        }
        if (chance(40)) {
                w.outage.from = start + between(0, 40 * SEC);
                w.outage.to = w.outage.from + between(SEC, 90 * SEC);
                w.outage_nodes = chance(50) ? w.n_nodes : (int)between(0, w.n_nodes);
        }
        for (int i = 0; i < w.n_nodes; i++) {
                if (!chance(15) || w.is_trickling)
                        continue;
                /* What only one agent knows is gone with its state. */
                const bool keeps_state =
                        w.mode == MODE_LOCAL || (!has_store() && i == 0) || chance(60);
                w.has_stateless_crash |= !keeps_state;
                w.nodes[i].is_dead = i > 0 && chance(30);
                plan((Event){ .kind = EVENT_CRASH, .node = i, .keeps_state = keeps_state },
                     start + between(0, 3 * 60 * SEC));
        }
}

static void draw_world(void) {
        w.mode = (Mode)between(0, N_MODES - 1);
        w.n_nodes = (int)(chance(85) ? between(2, 8) : between(9, chance(20) ? NODES_MAX : 24));
        if (w.mode == MODE_LOCAL)
                w.n_nodes = 1;
        w.n_ranks = (int)(chance(80) ? between(1, 4) : between(5, RANKS_MAX));
        if (w.n_nodes > 24)
                w.n_ranks = chance(10) ? RANKS_MAX : MIN(w.n_ranks, 4);
        w.settle_usec = between(2, 12) * SEC;
        w.window_usec = between(120, 600) * SEC;
        w.n_launches = chance(50) ? 2 : 1;
        for (int i = 0; i < w.n_nodes; i++) {
                Node *node = &w.nodes[i];
                node->id = i;
                snprintf(node->instance_id, INSTANCE_ID_SIZE, "i-%017d", i);
                node->boot_usec = between(1000 * SEC, 100000 * SEC);
        }
        w.is_trickling = chance(20);
        w.launched_usec[0] = 10 * SEC;
        w.spread_usec[0] = w.is_trickling ? w.window_usec * 3 / 2 : between(0, 12 * SEC);
        w.spread_usec[1] = between(0, 8 * SEC);
        w.launched_usec[1] = w.launched_usec[0] + 60 * SEC + w.spread_usec[0] +
                             (chance(70) ? between(0, 100 * SEC) : between(0, 20 * SEC));
        draw_faults();
        if (w.is_trickling) /* what was not recorded in time cannot be known: see check_launch() */
                w.partition = w.outage = (Span){ 0, 0 };
        const int ids = (int)between(0, 2);
        /* Other nodes may take part in the second launch. */
        const int n_first = chance(30) ? (int)between(1, w.n_nodes) : w.n_nodes;
        for (int l = 0; l < w.n_launches; l++)
                for (int i = 0; i < w.n_nodes; i++)
                        for (int r = 0; r < w.n_ranks && (i == 0 || l > 0 || i < n_first); r++)
                                plan_process(i, r, l, ids);
        w.end = w.launched_usec[w.n_launches - 1] + w.spread_usec[w.n_launches - 1] + 1500 * SEC;
        note("seed %" PRIu64
             ": %s, %d nodes of %d ranks, %d launches, settle %d s, window %d s%s%s",
             w.seed, mode_names[w.mode], w.n_nodes, w.n_ranks, w.n_launches,
             (int)(w.settle_usec / SEC), (int)(w.window_usec / SEC), w.is_calm ? ", calm" : "",
             w.is_trickling ? ", trickling" : "");
}

/* ---- what must be true in the end ---- */

/* The fold of all records: the newest claim of each process, and how many failures have it. */
static const Claim *folded(const Claim *process, uint32_t n) {
        const Claim *best = NULL;
        for (int i = 0; i < w.n_records; i++) {
                const Claim *c =
                        w.records[i].n == n ? claim_set_find(&w.records[i].claims, process) : NULL;
                if (c && (!best || c->revision > best->revision))
                        best = c;
        }
        return best;
}

static void check_process(const Process *p) {
        if (!p->has_decision) {
                fault("node %d: pid %u has no decision", p->node, p->claim.pid);
                return;
        }
        if (!has_store())
                return;
        if (p->decision.n == 0) {
                fault("node %d: pid %u has no number", p->node, p->claim.pid);
                return;
        }
        const Stored *s = &w.stored[p->decision.n];
        const Claim *c = folded(&p->claim, p->decision.n);
        if (!s->is_there)
                fault("failure %u is not at the store", p->decision.n);
        else if (!c || c->revision != p->claim.revision || c->state != p->claim.state ||
                 c->bundle_state != p->claim.bundle_state)
                fault("node %d: the records of %u do not say how pid %u is", p->node, p->decision.n,
                      p->claim.pid);
        for (uint32_t n = 1; n < FAILURES_MAX; n++)
                if (n != p->decision.n && (c = folded(&p->claim, n)) && claim_is_failure(c) &&
                    !w.has_stateless_crash)
                        fault("pid %u failed in %u and in %u", p->claim.pid, p->decision.n, n);
}

/* Who ended without a dump and surely belonged to a failure is in its records: its node has looked
 * for it. */
static void check_ended(const Process *p) {
        const Process *first = NULL;

        for (int i = 0; i < w.n_processes && !first; i++)
                if (w.processes[i].launch == p->launch &&
                    w.processes[i].claim.state == CLAIM_FAILED)
                        first = &w.processes[i];
        if (!has_store() || !first || first->decision.n == 0 || w.is_trickling)
                return;
        for (uint32_t n = 1; n < FAILURES_MAX; n++)
                if (folded(&p->claim, n))
                        return;
        if (p->claim.started_usec + w.nodes[first->node].boot_usec >
            first->decision.opened_usec + SEC / 2)
                return; /* it started when this was opened: another launch, or not */
        if (p->event_usec <= first->event_usec + w.window_usec - 3 * SEC)
                fault("node %d: pid %u ended, and no record says so", p->node, p->claim.pid);
}

static int compare_times(const void *a, const void *b) {
        const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
        return (x > y) - (x < y);
}

/* Whether its failures are so far apart that others may not know the last one in time. */
static bool has_gap(int launch) {
        int64_t times[NODES_MAX * RANKS_MAX], gap = 0;
        size_t n = 0;

        for (int i = 0; i < w.n_processes; i++)
                if (w.processes[i].launch == launch && w.processes[i].claim.state == CLAIM_FAILED &&
                    !w.nodes[w.processes[i].node].is_dead)
                        times[n++] = w.processes[i].event_usec;
        qsort(times, n, sizeof *times, compare_times);
        for (size_t i = 1; i < n; i++)
                gap = MAX(gap, times[i] - times[i - 1]);
        return gap > w.window_usec - 60 * SEC;
}

/* All that failed in one launch is one failure, if no failure was opened while it started. */
static void check_launch(int launch) {
        const Process *first = NULL;
        int64_t opened = INT64_MIN;

        for (int i = 0; i < w.n_processes; i++) {
                const Process *p = &w.processes[i];
                if (p->launch >= launch || p->claim.state != CLAIM_FAILED || !p->has_decision)
                        continue;
                opened = MAX(opened, p->decision.opened_usec - w.nodes[p->node].boot_usec);
        }
        if (opened + 5 * SEC > w.launched_usec[launch] || has_gap(launch))
                return;
        for (int i = 0; i < w.n_processes; i++) {
                const Process *p = &w.processes[i];
                if (p->launch != launch || p->claim.state != CLAIM_FAILED || !p->has_decision)
                        continue;
                if (!first)
                        first = p;
                else if (p->decision.n != first->decision.n)
                        fault("launch %d is in %u and in %u", launch, first->decision.n,
                              p->decision.n);
        }
}

static void check_published(void) {
        for (uint32_t n = 1; n < FAILURES_MAX; n++) {
                const Stored *s = &w.stored[n];
                for (int i = 0; i < w.n_nodes; i++) {
                        const uint64_t revisions = stored_revisions(n, i);
                        if (revisions > 0 && !s->is_published)
                                fault("failure %u was not published", n);
                        else if (revisions != s->published[i] && !w.nodes[i].is_dead)
                                fault("incident.json of %u lacks the record of node %d", n, i);
                }
        }
}

/* What issue 13 allows a node when nothing goes wrong: the creator publishes three times beside it.
 */
static void check_budget(void) {
        if (!w.is_calm || w.is_trickling || w.n_launches > 1)
                return;
        for (int i = 0; i < w.n_nodes; i++) {
                const Node *node = &w.nodes[i];
                const bool is_creator = strcmp(w.stored[1].d.created_by, node->instance_id) == 0;
                bool has_ended = false;
                for (int j = 0; j < w.n_processes; j++)
                        has_ended |= w.processes[j].node == i && w.processes[j].fate == CLAIM_ENDED;
                /* What fails one after the other is recorded one after the other. */
                const unsigned max = w.spread_usec[0] <= 2 * SEC ? 8 : 12;
                if (!has_ended && node->n_requests > max + 3 * (unsigned)is_creator)
                        fault("node %d: %u requests", i, node->n_requests);
                if (!has_ended && i > 0 && w.mode == MODE_BOTH && node->n_lists > 0)
                        fault("node %d: asks beside the centre", i);
                if (i > 0 && w.n_ranks == 1 && node->n_sends > 6)
                        fault("node %d: %u messages", i, node->n_sends);
        }
}

static void check_end(void) {
        for (int i = 0; i < w.n_processes && !w.fault; i++) {
                const Process *p = &w.processes[i];
                if (w.nodes[p->node].is_dead)
                        continue;
                if (p->claim.state == CLAIM_FAILED)
                        check_process(p);
                else if (p->claim.state == CLAIM_ENDED)
                        check_ended(p);
        }
        for (int i = 0; i < w.n_launches && !w.fault; i++)
                check_launch(i);
        if (has_store())
                check_published();
        check_budget();
}

static bool run(uint64_t seed) {
        random_state = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
        memset(&w, 0, sizeof w);
        w.seed = seed;
        draw_world();
        for (int i = 0; i < w.n_nodes; i++) {
                start_agent(&w.nodes[i], true);
                pump(&w.nodes[i]);
        }
        while (n_heap > 0 && !w.fault) {
                Event e = next_event();
                w.now = e.at;
                if (w.now <= w.end) {
                        total_events++;
                        on_event(&e);
                }
                event_done(&e);
        }
        if (!w.fault)
                check_end();
        for (; n_heap > 0; n_heap--)
                event_done(&heap[n_heap - 1]);
        for (int i = 0; i < w.n_nodes; i++) {
                total_requests += w.nodes[i].n_requests;
                total_sends += w.nodes[i].n_sends;
                agreement_free(w.nodes[i].agreement);
        }
        for (int i = 0; i < w.n_records; i++)
                claim_set_done(&w.records[i].claims);
        free(w.records);
        return !w.fault;
}

static int usage(void) {
        fprintf(stderr, "usage: sim [--seeds FIRST COUNT] [--seed N] [--verbose]\n");
        return 2;
}

int main(int argc, char **argv) {
        uint64_t first = 1, count = 300, n_faults = 0;

        for (int i = 1; i < argc; i++)
                if (strcmp(argv[i], "--verbose") == 0)
                        verbose = true;
                else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
                        first = strtoull(argv[++i], NULL, 10);
                        count = 1;
                } else if (strcmp(argv[i], "--seeds") == 0 && i + 2 < argc) {
                        first = strtoull(argv[++i], NULL, 10);
                        count = strtoull(argv[++i], NULL, 10);
                } else
                        return usage();
        printf("1..1\n");
        for (uint64_t seed = first; seed < first + count; seed++)
                if (!run(seed)) {
                        n_faults++;
                        printf("# seed %" PRIu64 " (%s): %s\n", seed, mode_names[w.mode], w.fault);
                }
        free(heap);
        printf("# %" PRIu64 " seeds: %" PRIu64 " events, %" PRIu64 " requests, %" PRIu64
               " messages; %" PRIu64 " faults\n",
               count, total_events, total_requests, total_sends, n_faults);
        printf("%s 1 - every failure has one name, and its records say the truth\n",
               n_faults ? "not ok" : "ok");
        return n_faults > 0;
}
