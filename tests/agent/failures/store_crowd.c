/* What 200 nodes ask of the store when it alone decides: real agreements and arbiters, a store in
 * memory that counts, and a clock that jumps to what is due next.
 *   store_crowd [NODES [RANKS]]    RANKS of each node */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/failures/arbiter.h"
#include "agent/peers/claim.h"
#include "lib/base/cleanup.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"

#define KEY "0123456789abcdef"
#define MSEC INT64_C(1000)
#define SEC INT64_C(1000000)
#define NODES_MAX 1000
#define RANKS_MAX 16
#define START (INT64_C(1779859959) * SEC) /* of the store's clock */
#define LATENCY_MIN (2 * MSEC)            /* of a request, and of its answer */
#define LATENCY_MAX (30 * MSEC)
/* One of them for the snapshot; without those of the first CREATE in the life of a node. */
#define REQUESTS_MAX 9
#define PUBLISHER_MAX 4 /* for each node */
#define PAGE 1000       /* names of a listing that one request to a bucket returns */

typedef struct Rank {
        Claim claim;
        int64_t fails_usec, delivered_usec; /* the latter is drawn with the decision */
} Rank;

typedef struct Node {
        Clock clock; /* first: it is cast */
        int64_t boot_usec;
        Agreement *agreement;
        Arbiter *arbiter;
        char id[INSTANCE_ID_SIZE];
        Rank ranks[RANKS_MAX];
        ListLink calls;
        int64_t snapshot_usec; /* when its snapshot is delivered, drawn with the decision; 0: not
                                  yet */
        bool has_snapshot, has_probed, has_published, is_dead;
        unsigned n_calls, n_http;
} Node;

struct ObjectCall {
        ListLink link;
        Node *node;
        ObjectRequest request; /* name and data are copies */
        int64_t due_usec;
        bool is_executed;
        ObjectResult result;
        char *data; /* GET */
};

typedef struct Object {
        char *name;
        void *data;
        size_t n;
        int64_t modified_usec;
} Object;

typedef struct Scene {
        const char *name;
        int with_cluster_id; /* percent of the ranks */
        bool creator_dies;   /* at once */
} Scene;

static Node nodes[NODES_MAX];
static int n_nodes = 200, n_ranks = 8;
static Object *objects;
static size_t n_objects;
static ObjectEntry *entries;
static int64_t now; /* the store's */
static const Scene *scene;
static int n_created, n_published, n_faults;

static int64_t between(int64_t from, int64_t to) {
        static uint64_t state = 1;
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return from + (int64_t)((state >> 20) % (uint64_t)(to - from + 1));
}

static void require(bool claim, const char *what) {
        if (claim)
                return;
        printf("# %s: %s\n", scene->name, what);
        n_faults++;
}

static uint64_t boottime(Clock *c) {
        return (uint64_t)(now + ((Node *)c)->boot_usec);
}

/* ---- the store, in place of agent/delivery/objects.c ---- */

static Object *find_object(const char *name) {
        for (size_t i = 0; i < n_objects; i++)
                if (strcmp(objects[i].name, name) == 0)
                        return &objects[i];
        return NULL;
}

static void write_object(const ObjectRequest *q) {
        Object *o = find_object(q->name);
        if (!o) {
                objects = realloc(objects, (n_objects + 1) * sizeof *objects);
                entries = realloc(entries, (n_objects + 1) * sizeof *entries);
                if (!objects || !entries)
                        abort();
                o = &objects[n_objects++];
                *o = (Object){ .name = strdup(q->name) };
        }
        free(o->data);
        o->data = malloc(q->n + 1);
        if (!o->data || !o->name)
                abort();
        memcpy(o->data, q->data, q->n);
        ((char *)o->data)[q->n] = '\0';
        o->n = q->n;
        o->modified_usec = now / SEC * SEC; /* as a bucket has it */
}

static int by_name(const void *a, const void *b) {
        return strcmp(((const ObjectEntry *)a)->name, ((const ObjectEntry *)b)->name);
}

static void list_objects(ObjectCall *c) {
        size_t n = 0;
        for (size_t i = 0; i < n_objects; i++)
                if (strncmp(objects[i].name, c->request.name, strlen(c->request.name)) == 0)
                        entries[n++] = (ObjectEntry){ objects[i].name, objects[i].n,
                                                      objects[i].modified_usec, true };
        if (n > 0)
                qsort(entries, n, sizeof *entries, by_name);
        c->result.entries = entries;
        c->result.n_entries = n;
        c->node->n_http += (unsigned)(n / PAGE);
}

static ObjectOutcome execute(ObjectCall *c) {
        const ObjectRequest *q = &c->request;
        Object *o = find_object(q->name);
        switch (q->operation) {
        case OBJECT_LIST:
                return OBJECT_OK;
        case OBJECT_GET:
                if (!o)
                        return OBJECT_NOT_FOUND;
                c->data = strdup(o->data);
                c->result.data = c->data;
                c->result.n = o->n;
                c->result.modified_usec = o->modified_usec;
                return OBJECT_OK;
        case OBJECT_CREATE:
                if (o)
                        return OBJECT_EXISTS;
                n_created++;
                c->node->n_http++; /* what was created is read */
                c->result.modified_usec = now / SEC * SEC;
                c->node->is_dead = scene->creator_dies;
                break;
        default:
                if (strstr(q->name, "incident.json")) {
                        c->node->has_published = true;
                        n_published++;
                }
        }
        write_object(q);
        return OBJECT_OK;
}

/* Counts what delivery/objects.c would send to a bucket: a node's first CREATE tries out twice
 * whether the store heeds conditions, and deletes what it made. */
int object_call_new(ObjectCall **ret, Scheduler *s, const ObjectRequest *request) {
        Node *node = (Node *)s;
        int n_trips = 1;
        node->n_calls++;
        node->n_http++;
        if (request->operation == OBJECT_CREATE && !node->has_probed) {
                node->has_probed = true;
                node->n_http += 3;
                n_trips = 3;
        }
        ObjectCall *c = calloc(1, sizeof *c);
        if (!c)
                abort();
        c->node = node;
        c->request = *request;
        c->request.name = strdup(request->name);
        c->due_usec = now;
        while (n_trips-- > 0)
                c->due_usec += between(LATENCY_MIN, LATENCY_MAX);
        list_append(&node->calls, &c->link);
        *ret = c;
        return 0;
}

static void call_free(ObjectCall *c) {
        list_remove(&c->link);
        free((char *)c->request.name);
        free(c->data);
        free(c);
}

ObjectCall *object_call_cancel(ObjectCall *c) {
        if (!c)
                return NULL;
        call_free(c);
        return NULL;
}

char *objects_failure_directory(Scheduler *s, const char *destination, const char *date_time,
                                const char *cluster_id, const char *kind, const char *source,
                                bool *ret_differs) {
        (void)s, (void)destination, (void)kind, (void)source;
        *ret_differs = false;
        return strbuf_format("%s-%s", date_time, cluster_id);
}

static void advance_call(ObjectCall *c) {
        if (!c->is_executed) {
                c->is_executed = true;
                c->result.outcome = execute(c);
                c->due_usec = now + between(LATENCY_MIN, LATENCY_MAX);
                return;
        }
        if (c->request.operation == OBJECT_LIST)
                list_objects(c);
        c->result.has_clock = true;
        c->result.clock_offset_usec = between(-SEC / 2, SEC / 2) - c->node->boot_usec;
        c->result.uncertainty_usec = SEC / 2;
        list_remove(&c->link);
        c->request.on_done(&c->result, c->request.userdata); /* may make the next one */
        call_free(c);
}

/* ---- nodes ---- */

static void claim(Node *node, Rank *r) {
        Claim c = r->claim;
        claim_shift(&c, node->boot_usec);
        require(agreement_claim(node->agreement, KEY, &c, false, now + node->boot_usec) == 0,
                "a claim is refused");
}

static void advance_rank(Node *node, Rank *r) {
        if (r->fails_usec <= now) {
                r->fails_usec = INT64_MAX;
                r->claim.state = CLAIM_FAILED;
                r->claim.bundle_state = CLAIM_BUNDLE_PENDING;
                r->claim.event_usec = now;
        } else if (r->delivered_usec <= now) {
                r->delivered_usec = INT64_MAX - 1;
                r->claim.bundle_state = CLAIM_BUNDLE_DELIVERED;
        } else
                return;
        r->claim.revision++;
        claim(node, r);
}

static ObjectCall *next_call(const Node *node) {
        ObjectCall *next = NULL;
        LIST_FOREACH_ITEM (ObjectCall, c, link, &node->calls)
                if (!next || c->due_usec < next->due_usec)
                        next = c;
        return next;
}

static const Decision *decision_of(const Node *node) {
        return agreement_find(node->agreement, KEY, &node->ranks[0].claim);
}

/* Snapshots come when the ranks have been inspected again after their exit. */
static void advance_snapshot(Node *node) {
        const Decision *d = decision_of(node);
        if (d && node->snapshot_usec == 0)
                node->snapshot_usec = now + between(30 * SEC, 90 * SEC);
        if (node->snapshot_usec == 0 || node->snapshot_usec > now || node->has_snapshot)
                return;
        node->has_snapshot = true;
        agreement_on_bundle(node->agreement, KEY, d->n, now + node->boot_usec);
}

static int add_bundles(const Decision *failure, NodeBundles *ret, void *userdata) {
        const Node *node = userdata;
        (void)failure;
        if (node->has_snapshot && node_bundles_add(ret, "snapshot-20260527T051259-0c21fa967905",
                                                   BUNDLE_DELIVERED, "s3://bucket/x") < 0)
                abort();
        return 0;
}

static void drive(Node *node) {
        Action action;
        ObjectCall *c = next_call(node);
        if (c && c->due_usec <= now)
                advance_call(c);
        if (node->is_dead)
                return;
        for (int i = 0; i < n_ranks; i++)
                advance_rank(node, &node->ranks[i]);
        advance_snapshot(node);
        while (agreement_next_action(node->agreement, now + node->boot_usec, &action) !=
               ACTION_NONE)
                arbiter_execute(node->arbiter, (Scheduler *)node, &action);
        for (int i = 0; i < n_ranks; i++) {
                Rank *r = &node->ranks[i];
                if (r->delivered_usec == INT64_MAX && r->claim.state == CLAIM_FAILED &&
                    agreement_find(node->agreement, KEY, &r->claim))
                        r->delivered_usec = now + between(100 * MSEC, 10 * SEC);
        }
}

static int64_t due_usec(const Node *node) {
        int64_t t = agreement_next_time(node->agreement);
        if (node->is_dead)
                return INT64_MAX;
        t = t == AGREEMENT_NEVER ? t : t - node->boot_usec;
        for (int i = 0; i < n_ranks; i++) {
                t = MIN(t, node->ranks[i].fails_usec);
                t = MIN(t, node->ranks[i].delivered_usec);
        }
        if (node->snapshot_usec != 0 && !node->has_snapshot)
                t = MIN(t, node->snapshot_usec);
        const ObjectCall *c = next_call(node);
        return c ? MIN(t, c->due_usec) : t;
}

static void on_done(Arbiter *a, void *userdata) {
        (void)a, (void)userdata; /* drive() continues */
}

static void start_rank(const Node *node, int number, int i, Rank *r) {
        *r = (Rank){ .fails_usec = START + 60 * SEC + between(0, SEC),
                     .delivered_usec = INT64_MAX,
                     .claim = { .pid = 100 + (uint32_t)i,
                                .start_ticks = 1,
                                .revision = 1,
                                .rank = number * n_ranks + i,
                                .world_size = (int64_t)n_nodes * n_ranks,
                                .started_usec = START,
                                .event_usec = START } };
        (void)snprintf(r->claim.boot_id, sizeof r->claim.boot_id, "%032d", number);
        memcpy(r->claim.instance_id, node->id, sizeof node->id);
        strcpy(r->claim.cluster_id,
               between(0, 99) < scene->with_cluster_id ? "d99e36ea74c263ca" : "0000000000000000");
        strcpy(r->claim.date_time, "20260527-051259");
}

static void start_node(int number) {
        Node *node = &nodes[number];
        *node = (Node){ .clock = { .realtime_usec = boottime, .boottime_usec = boottime },
                        .boot_usec = between(1000 * SEC, 100000 * SEC) - START };
        list_init(&node->calls);
        (void)snprintf(node->id, sizeof node->id, "i-%017d", number);
        if (agreement_new(&node->agreement, &(AgreementOptions){ .instance_id = node->id,
                                                                 .settle_usec = 5 * SEC,
                                                                 .window_usec = 120 * SEC,
                                                                 .seed = (uint64_t)number }) < 0 ||
            arbiter_new(&node->arbiter, &(ArbiterOptions){ .clock = &node->clock,
                                                           .agreement = node->agreement,
                                                           .instance_id = node->id,
                                                           .key = KEY,
                                                           .job_key = "",
                                                           .destination = "archive",
                                                           .kind = "core-dump",
                                                           .source = "dumps",
                                                           .add_bundles = add_bundles,
                                                           .on_done = on_done,
                                                           .userdata = node }) < 0)
                abort();
        (void)agreement_set_arbiter(node->agreement, KEY, true);
        for (int i = 0; i < n_ranks; i++) {
                start_rank(node, number, i, &node->ranks[i]);
                claim(node, &node->ranks[i]);
        }
}

/* ---- a failure ---- */

static int by_value(const void *a, const void *b) {
        const unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
        return (x > y) - (x < y);
}

static int count(const char *text, const char *word) {
        int n = 0;
        while (text && (text = strstr(text, word))) {
                n++;
                text++;
        }
        return n;
}

/* @return how often incident.json has this word */
static int count_published(const char *word) {
        for (size_t i = 0; i < n_objects; i++)
                if (strstr(objects[i].name, "incident.json"))
                        return count(objects[i].data, word);
        return 0;
}

static void report(void) {
        unsigned calls[NODES_MAX], http[NODES_MAX], most = 0;
        uint64_t total = 0;
        int n = 0, n_dead = 0, n_publishers = 0;
        for (int i = 0; i < n_nodes; i++) {
                const Node *node = &nodes[i];
                total += node->n_http;
                n_dead += node->is_dead;
                n_publishers += node->has_published;
                if (node->has_published)
                        most = MAX(most, node->n_http);
                else {
                        calls[n] = node->n_calls;
                        http[n++] = node->n_http;
                }
                require(node->is_dead || decision_of(node), "a node has no decision");
        }
        if (n == 0)
                calls[n] = http[n] = 0, n = 1;
        qsort(calls, (size_t)n, sizeof *calls, by_value);
        qsort(http, (size_t)n, sizeof *http, by_value);
        printf("# %s: calls of a node: median %u, most %u; requests to a bucket: median %u, most "
               "%u; of %d that published %d times: most %u, %.2f for each node; of all: %llu\n",
               scene->name, calls[n / 2], calls[n - 1], http[n / 2], http[n - 1], n_publishers,
               n_published, most, (double)most / n_nodes, (unsigned long long)total);
        require(n_created == 1, "there is not one decision");
        require(count_published("\"present\"") == (n_nodes - n_dead) * n_ranks,
                "incident.json is not complete");
        require(count_published("\"snapshot\"") == n_nodes - n_dead,
                "incident.json has not all snapshots");
        require(calls[n - 1] <= REQUESTS_MAX, "a node asks too often");
        require(most <= (unsigned)(PUBLISHER_MAX * n_nodes), "a publisher asks too often");
}

static void run(const Scene *s) {
        scene = s;
        now = START;
        n_created = n_published = 0;
        for (int i = 0; i < n_nodes; i++)
                start_node(i);
        for (;;) {
                Node *next = &nodes[0];
                int64_t due = INT64_MAX;
                for (int i = 0; i < n_nodes; i++)
                        if (due_usec(&nodes[i]) < due) {
                                next = &nodes[i];
                                due = due_usec(next);
                        }
                if (due > START + 3600 * SEC)
                        break;
                now = MAX(now, due);
                drive(next);
        }
        report();
        for (int i = 0; i < n_nodes; i++) {
                arbiter_free(nodes[i].arbiter);
                agreement_free(nodes[i].agreement);
        }
        for (; n_objects > 0; n_objects--) {
                free(objects[n_objects - 1].name);
                free(objects[n_objects - 1].data);
        }
}

int main(int argc, char **argv) {
        static const Scene scenes[] = { { "all have a cluster id", 100, false },
                                        { "half have one", 50, false },
                                        { "none has one", 0, false },
                                        { "none has one, and the creator dies", 0, true } };
        n_nodes = argc > 1 ? atoi(argv[1]) : n_nodes;
        n_ranks = argc > 2 ? atoi(argv[2]) : n_ranks;
        if (n_nodes < 1 || n_nodes > NODES_MAX || n_ranks < 1 || n_ranks > RANKS_MAX) {
                fprintf(stderr, "usage: store_crowd [NODES [RANKS]]\n");
                return 2;
        }
        log_setup(LOG_FORMAT_TEXT, LOG_ERR);
        printf("1..1\n");
        for (size_t i = 0; i < ELEMENTSOF(scenes); i++)
                run(&scenes[i]);
        free(objects);
        free(entries);
        printf("%s 1 - %d nodes of %d ranks do not ask the store too often\n",
               n_faults ? "not ok" : "ok", n_nodes, n_ranks);
        return n_faults > 0;
}
