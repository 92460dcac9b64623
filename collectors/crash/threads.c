/* The call chains of all threads, equal ones grouped: hundreds of threads wait in few places. The
 * crashed thread is unwound first, because what is read of a core is limited, and is a group of its
 * own. unwind.c makes each chain. */
#include "collectors/crash/threads.h"

#include <errno.h>
#include <string.h>

#include "lib/base/array.h"

static uint64_t hash_of(const UnwindChain *chain) {
        uint64_t h = chain->end;
        for (size_t i = 0; i < chain->n; i++)
                h = (h ^ chain->frames[i].pc) * UINT64_C(0x9e3779b97f4a7c15);
        return h ^ h >> 32;
}

static bool is_same(const ThreadGroup *g, const UnwindChain *chain, uint64_t hash) {
        if (g->hash != hash || g->n_frames != chain->n || g->end != chain->end)
                return false;
        for (size_t i = 0; i < chain->n; i++)
                if (g->frames[i].pc != chain->frames[i].pc)
                        return false;
        return true;
}

static int new_group(Threads *t, const UnwindChain *chain, uint64_t hash, size_t thread) {
        if (array_grow(&t->groups, t->n_groups, sizeof *t->groups) < 0)
                return -ENOMEM;
        UnwindFrame *frames = calloc(chain->n, sizeof *frames);
        if (!frames)
                return -ENOMEM;
        memcpy(frames, chain->frames, chain->n * sizeof *frames);
        t->groups[t->n_groups++] = (ThreadGroup){ .hash = hash,
                                                  .frames = frames,
                                                  .n_frames = chain->n,
                                                  .end = chain->end,
                                                  .first_thread = thread };
        return 0;
}

static int add_chain(Threads *t, const UnwindChain *chain, size_t thread) {
        const uint64_t hash = hash_of(chain);
        size_t i = thread == 0 ? 0 : 1; /* nobody joins the one that crashed */
        while (i < t->n_groups && !is_same(&t->groups[i], chain, hash))
                i++;
        int r = i == t->n_groups ? new_group(t, chain, hash, thread) : 0;
        if (r < 0)
                return r;
        t->group_of[thread] = (uint32_t)i;
        t->groups[i].n_threads++;
        t->n_ends[chain->end]++;
        t->n_frames += chain->n;
        return 0;
}

static int compare_groups(const void *a, const void *b) {
        const ThreadGroup *x = a, *y = b;
        if (x->n_threads != y->n_threads)
                return x->n_threads > y->n_threads ? -1 : 1;
        return x->first_thread < y->first_thread ? -1 : 1;
}

static int sort_groups(Threads *t, size_t n_threads) {
        _cleanup_free_ uint32_t *number_of_first = calloc(n_threads + 1, sizeof *number_of_first);
        if (!number_of_first)
                return -ENOMEM;
        for (size_t i = 0; i < n_threads; i++)
                t->group_of[i] = (uint32_t)t->groups[t->group_of[i]].first_thread;
        if (t->n_groups > 1)
                qsort(t->groups + 1, t->n_groups - 1, sizeof *t->groups, compare_groups);
        for (size_t i = 0; i < t->n_groups; i++)
                number_of_first[t->groups[i].first_thread] = (uint32_t)i;
        for (size_t i = 0; i < n_threads; i++)
                t->group_of[i] = number_of_first[t->group_of[i]];
        return 0;
}

int threads_unwind_crashed(Threads *ret, Modules *modules) {
        const CoreNotes *c = modules->memory->notes;
        _cleanup_(unwinder_freep) Unwinder *u = NULL;
        _cleanup_free_ UnwindChain *chain = malloc(sizeof *chain);
        *ret = (Threads){ .group_of = calloc(c->n_threads + 1, sizeof *ret->group_of) };
        if (!chain || !ret->group_of)
                return -ENOMEM;
        int r = c->n_threads > 0 ? unwinder_new(&u, modules) : 0;
        if (r < 0 || c->n_threads == 0)
                return r;
        unwind_thread_state(c, &c->threads[0], &ret->crashed);
        r = unwind_chain(u, &ret->crashed, chain);
        if (r < 0)
                return r;
        memcpy(ret->interrupts, chain->interrupts, sizeof ret->interrupts);
        ret->n_interrupts = chain->n_interrupts;
        return add_chain(ret, chain, 0);
}

int threads_unwind_others(Threads *t, Modules *modules) {
        const CoreNotes *c = modules->memory->notes;
        _cleanup_(unwinder_freep) Unwinder *u = NULL;
        _cleanup_free_ UnwindChain *chain = malloc(sizeof *chain);
        if (!chain)
                return -ENOMEM;
        int r = unwinder_new(&u, modules);
        for (size_t i = 1; i < c->n_threads && r == 0; i++) {
                UnwindState state;
                unwind_thread_state(c, &c->threads[i], &state);
                r = unwind_chain(u, &state, chain);
                if (r == 0)
                        r = add_chain(t, chain, i);
        }
        return r == 0 ? sort_groups(t, c->n_threads) : r;
}

void threads_done(Threads *t) {
        for (size_t i = 0; i < t->n_groups; i++)
                free(t->groups[i].frames);
        free(t->groups);
        free(t->group_of);
        *t = (Threads){ 0 };
}
