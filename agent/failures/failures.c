/* Failures of jobs as this node sees them: the object that connects the node's claims with the
 * agreement, and its timer.
 *
 * The agreement (agent/peers/agreement.h) is pure: it decides which failure a claim belongs to and
 * what is due. This file gives it the time and the messages of the bus, and carries out its
 * actions: it sends on the bus, or has the key's arbiter read and write (arbiter.c). Everything
 * that changes calls wake(); failures_step() then does what is due, in the loop's next turn.
 *
 * failures_private.h shows what is in which file. */
#include "agent/failures/failures_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <systemd/sd-id128.h>

#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

/* With --once the agent waits for what is due within this time, and for so long in all. */
#define SOON_USEC (INT64_C(1200) * 1000)
#define IDLE_WAIT_USEC (INT64_C(5) * 1000000)
/* How often rendezvous are looked up: names of hosts may be known by then, and the bus have its
 * key. */
#define MEETING_USEC (INT64_C(2) * 1000000)

/* ---- status ---- */

bool failures_is_idle(Failures *f) {
        int64_t now = failures_now_usec(f);
        bool is_busy = agreement_next_time(f->agreement) < now + SOON_USEC;
        FAILURE_TABLE_FOREACH_KEY(k, &f->table)
        is_busy = is_busy || (k->arbiter && arbiter_state(k->arbiter)->is_busy);
        if (!is_busy || f->busy_usec == 0)
                f->busy_usec = is_busy ? now : 0;
        return !is_busy || now - f->busy_usec > IDLE_WAIT_USEC;
}

bool failures_are_recording(Failures *f) {
        return agreement_is_recording(f->agreement) && !failures_is_idle(f);
}

static void add_failure_status(const Failures *f, const AgreementFailure *x, StrBuf *b) {
        const FailureKey *k = failure_table_find_key(&f->table, x->decision->key);
        uint64_t n_failed = 0;
        for (size_t i = 0; i < x->claims->n; i++)
                n_failed += claim_is_failure(&x->claims->items[i]);
        json_out_object(b, NULL);
        json_out_string(b, "key", x->decision->key);
        json_out_u64(b, "n", x->decision->n);
        json_out_string(b, "cluster_id", x->decision->cluster_id);
        json_out_string(b, "date_time", x->decision->date_time);
        json_out_bool(b, "derived", x->decision->derived);
        json_out_string(b, "agreed", agreed_name(x->decision->agreed));
        json_out_string(b, "job", k && k->job.key[0] ? k->job.key : NULL);
        json_out_u64(b, "processes", x->claims->n);
        json_out_u64(b, "failed", n_failed);
        json_out_end_object(b);
}

static void add_bus_status(const Failures *f, StrBuf *b) {
        BusView v = { .state = "off" };
        if (f->bus)
                bus_view(f->bus, &v);
        json_out_object(b, "bus");
        json_out_string(b, "state", v.state);
        json_out_string(b, "last_error", v.last_error);
        json_out_bool(b, "has_key", v.has_key);
        json_out_u64(b, "connected", v.n_connected);
        json_out_u64(b, "dialled", v.n_dialled);
        json_out_u64(b, "sent", v.n_sent);
        json_out_u64(b, "sent_bytes", v.n_sent_bytes);
        json_out_u64(b, "received", v.n_received);
        json_out_u64(b, "rejected", v.n_rejected);
        json_out_u64(b, "restarts", v.n_restarts);
        json_out_end_object(b);
}

void failures_add_status(Failures *f, StrBuf *b) {
        static const ArbiterState none;
        const ArbiterState *arbiter = &none; /* one with an error, if there is one */
        AgreementFailure x;
        uint64_t n_live = 0, n_keys = 0;
        FAILURE_TABLE_FOREACH_KEY(k, &f->table) {
                n_keys++;
                if (k->arbiter && !arbiter->error)
                        arbiter = arbiter_state(k->arbiter);
        }
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table)
        n_live += p->watch != NULL;
        json_out_object(b, NULL);
        json_out_bool(b, "enabled", true);
        json_out_u64(b, "ranks", n_live);
        json_out_u64(b, "keys", n_keys);
        json_out_string(b, "arbiter", arbiter->destination);
        json_out_string(b, "last_error", arbiter->error);
        json_out_u64(b, "dropped", f->table.n_dropped);
        add_bus_status(f, b);
        json_out_array(b, "failures");
        for (size_t i = 0; agreement_failure(f->agreement, i, &x); i++)
                add_failure_status(f, &x, b);
        json_out_end_array(b);
        json_out_end_object(b);
}

/* ---- the timer ---- */

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        failures_step(userdata);
        return 0;
}

static void arm(Failures *f, int64_t at) {
        uint64_t now = (uint64_t)failures_now_usec(f);
        int r = timer_arm(&f->timer,
                          &(TimerOptions){ .event = f->context.event,
                                           .usec = (uint64_t)at > now ? (uint64_t)at - now : 0,
                                           .slack_usec = 10 * USEC_PER_MSEC,
                                           .handler = on_timer,
                                           .userdata = f });
        if (r < 0 && r != -ESTALE) /* the loop has ended */
                log_error(r, "cannot arm the timer of the agreement between nodes");
}

static void wake(Failures *f) {
        arm(f, 0);
}

/* ---- what is due ---- */

/* Requests a snapshot when a job has failed on another node and has live ranks here: what this node
 * looks like then is evidence. */
static void report_peers(Failures *f) {
        AgreementFailure x;
        for (size_t i = 0; agreement_failure(f->agreement, i, &x); i++) {
                FailureKey *k = failure_table_find_key(&f->table, x.decision->key);
                if (!k || x.decision->n <= k->n_reported)
                        continue;
                bool failed_here = false;
                FAILURE_TABLE_FOREACH_PROCESS(p, &f->table)
                failed_here |= p->key == k && p->n == x.decision->n && claim_is_failure(&p->claim);
                k->n_reported = x.decision->n;
                if (failed_here || !k->job.key[0] ||
                    !failure_table_has_live_rank(&f->table, k, NULL))
                        continue;
                _cleanup_free_ char *what =
                        strbuf_format("failure %s/%u of job %s", k->key, k->n_reported, k->job.key);
                if (what)
                        f->context.on_peer_failure(what, f->context.userdata);
        }
}

static void execute_actions(Failures *f) {
        Action action;
        while (agreement_next_action(f->agreement, failures_now_usec(f), &action) != ACTION_NONE) {
                FailureKey *k = failure_table_find_key(&f->table, action.key);
                if (action.kind == ACTION_SEND && f->bus)
                        (void)bus_send(f->bus, action.message); /* the agreement sends it again */
                else if (k && k->arbiter && action.kind != ACTION_SEND)
                        arbiter_execute(k->arbiter, f->scheduler, &action);
        }
}

void failures_step(Failures *f) {
        int64_t next = failures_claim_units(f);
        if (f->bus && failures_now_usec(f) >= f->meeting_usec) {
                failures_set_rendezvous(f);
                f->meeting_usec = failures_now_usec(f) + MEETING_USEC;
        }
        bool is_named = failures_place_claims(f); /* a record lists the bundles by that */
        execute_actions(f);
        if (failures_place_claims(f) || is_named)
                f->context.on_named(f->context.userdata);
        report_peers(f);
        next = MIN(next, failure_pointers_step(&f->pointers, f->scheduler));
        if (failures_now_usec(f) >= f->prune_usec)
                (void)failures_prune(f); /* on error again in a minute */
        next = MIN(next, agreement_next_time(f->agreement));
        if (f->bus && !list_is_empty(&f->table.keys))
                next = MIN(next, f->meeting_usec);
        arm(f, MIN(next, failures_now_usec(f) + (int64_t)USEC_PER_MINUTE));
}

/* ---- life ---- */

static void on_message(const Message *m, void *userdata) {
        Failures *f = userdata;
        int r = agreement_hear(f->agreement, m, failures_now_usec(f));
        if (r < 0)
                f->table.n_dropped++;
        f->wake(f);
}

/* On failure the arbiter decides alone. */
static void start_bus(Failures *f) {
        const Config *c = f->config;
        if (!f->context.has_bus)
                return;
        int r = bus_new(&f->bus, &(BusOptions){ .event = f->context.event,
                                                .clock = f->context.clock,
                                                .instance_id = f->context.instance_id,
                                                .listen = c->agreement.listen,
                                                .peers = c->agreement.peers.items,
                                                .key_file = c->agreement.key_file,
                                                .on_message = on_message,
                                                .userdata = f });
        if (r < 0)
                log_warning(r, "cannot start the bus; the store alone decides");
}

int failures_new(Failures **ret, const FailuresContext *context, const Config *config) {
        _cleanup_(failures_freep) Failures *f = calloc(1, sizeof *f);
        uint64_t seed = 0;
        sd_id128_t boot;
        if (!f)
                return -ENOMEM;
        (void)getrandom(&seed, sizeof seed, GRND_NONBLOCK); /* for jitter */
        f->context = *context;
        f->config = config;
        f->wake = wake;
        failure_table_init(&f->table);
        f->table.bundles = context->bundles;
        f->table.failures = f;
        failure_pointers_init(&f->pointers, context->clock);
        int r = sd_id128_get_boot(&boot);
        if (r < 0)
                return r;
        (void)sd_id128_to_string(boot, f->boot_id);
        r = agreement_new(
                &f->agreement,
                &(AgreementOptions){ .instance_id = context->instance_id,
                                     .settle_usec = (int64_t)config->agreement.settle_usec,
                                     .window_usec = (int64_t)config->agreement.window_usec,
                                     .seed = seed });
        if (r < 0)
                return r;
        f->table.agreement = f->agreement;
        f->created_usec = store_counter(context->store, "created_usec");
        if (f->created_usec == 0) {
                f->created_usec = context->clock->realtime_usec(context->clock);
                (void)store_counter_add(context->store, "created_usec", f->created_usec);
        }
        start_bus(f);
        failures_restore(f);
        f->wake(f);
        *ret = TAKE_PTR(f);
        return 0;
}

void failures_rebind(Failures *f, const Config *config) {
        f->config = config;
        f->bus = bus_free(f->bus);
        start_bus(f);
        agreement_set_times(f->agreement, (int64_t)config->agreement.settle_usec,
                            (int64_t)config->agreement.window_usec);
}

void failures_set_scheduler(Failures *f, Scheduler *s) {
        f->scheduler = s;
        FAILURE_TABLE_FOREACH_KEY(k, &f->table)
        if (s)
                failures_set_arbiter(f, k);
        else if (k->arbiter)
                arbiter_cancel(k->arbiter);
        if (!s) {
                failure_pointers_cancel(&f->pointers);
                FAILURE_TABLE_FOREACH_UNIT(u, &f->table)
                u->search = object_call_cancel(u->search);
        }
        f->wake(f);
}

void failures_hurry(Failures *f, bool on) {
        f->hurry = on;
        agreement_hurry(f->agreement, on);
        f->wake(f);
}

Failures *failures_free(Failures *f) {
        if (!f)
                return NULL;
        failure_table_done(&f->table);
        bus_free(f->bus);
        failure_pointers_done(&f->pointers);
        agreement_free(f->agreement);
        sd_event_source_disable_unref(f->timer);
        free(f);
        return NULL;
}
