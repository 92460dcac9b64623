/* Which validator checks which member, and what all of them have in common. The formats are in
 * validate_*.c. */
#include "lib/bundle/validate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/bundle/validate_private.h"

/* The note of members whose content is not validated: the runtime's state files have no public
 * format. */
static const char *opaque_note(SourceKind source, MemberKind kind) {
        switch (kind) {
        case MEMBER_NC_STATE:
        case MEMBER_CC_CORE_STATE:
        case MEMBER_NRT_LOG:
                return "format not public";
        case MEMBER_OTHER:
                /* The grammar of names is the runtime's only for its own directory. */
                return source == SOURCE_NEURON_CORE_DUMP ? "name not known" : "";
        default:
                return "";
        }
}

static const char *empty_note(MemberKind kind, const char *name) {
        if (kind == MEMBER_NTFF || strcmp(name, "cpu_util.pb") == 0 ||
            strcmp(name, "host_mem.pb") == 0)
                return "zero bytes are normal for this file in some modes of profiling";
        return "";
}

#define QUICK_BYTES (64 * 1024)

static const char *const verdict_names[N_VERDICTS] = {
        [VERDICT_OK] = "ok",       [VERDICT_SUSPECT] = "suspect", [VERDICT_TRUNCATED] = "truncated",
        [VERDICT_EMPTY] = "empty", [VERDICT_OPAQUE] = "opaque",
};

DEFINE_WORDS(verdict, Verdict, verdict_names);

DEFINE_CLEANUP(Validator, validator_free);

static Verdict empty_finish(Validator *v, StrBuf *detail) {
        strbuf_add(detail, v->note);
        return VERDICT_EMPTY;
}

static Verdict opaque_finish(Validator *v, StrBuf *detail) {
        strbuf_add(detail, v->note);
        return VERDICT_OPAQUE;
}

static const ValidatorOps empty_ops = { .finish = empty_finish },
                          opaque_ops = { .finish = opaque_finish };

/* A system trace is protobuf or JSON by its ending: neither has a magic number of public knowledge.
 */
static bool name_is_pb(const char *name) {
        size_t n = strlen(name);
        return n > 3 && strcmp(name + n - 3, ".pb") == 0;
}

static const ValidatorOps *ops_for(MemberKind kind, const char *name) {
        switch (kind) {
        case MEMBER_NEFF:
                return &validator_neff_ops;
        case MEMBER_NTFF:
                return &validator_protobuf_ops;
        case MEMBER_SYSTEM_TRACE:
                return name_is_pb(name) ? &validator_protobuf_ops : &opaque_ops;
        case MEMBER_ELF_CORE:
                return &validator_elf_ops;
        default:
                return &opaque_ops;
        }
}

int validator_new(Validator **ret, const ValidatorOptions *order) {
        const char *name = path_name(order->name);
        _cleanup_(validator_freep) Validator *v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;

        v->kind = order->kind;
        v->size = order->size_bytes;
        if (order->size_bytes == 0) {
                v->ops = &empty_ops;
                v->note = empty_note(order->kind, name);
        } else {
                v->ops = ops_for(order->kind, name);
                v->note = opaque_note(order->source, order->kind);
        }
        *ret = TAKE_PTR(v);
        return 0;
}

Validator *validator_free(Validator *v) {
        if (!v)
                return NULL;
        if (v->ops->done)
                v->ops->done(v);
        free(v);
        return NULL;
}

void validator_update(Validator *v, const void *data, uint64_t n) {
        n = MIN(n, v->size - v->offset);
        if (n > 0 && v->ops->update)
                v->ops->update(v, data, n);
        v->offset += n;
}

uint64_t validator_skippable_bytes(const Validator *v) {
        return v->ops->skippable_bytes ? v->ops->skippable_bytes(v) : UINT64_MAX;
}

Verdict validator_finish(Validator *v, char **ret_detail) {
        StrBuf detail = STRBUF_INIT;
        Verdict verdict;

        if (v->offset < v->size) {
                verdict = VERDICT_TRUNCATED;
                strbuf_addf(&detail, "only %llu of %llu bytes could be read",
                            (unsigned long long)v->offset, (unsigned long long)v->size);
        } else
                verdict = v->ops->finish(v, &detail);

        *ret_detail = strbuf_detach(&detail);
        strbuf_done(&detail);
        return verdict;
}

Verdict validate_quick(int fd, MemberKind kind, uint64_t size_bytes) {
        if (kind != MEMBER_NEFF && kind != MEMBER_ELF_CORE)
                return VERDICT_OK;
        if (size_bytes == 0)
                return VERDICT_EMPTY;

        _cleanup_(validator_freep) Validator *v = NULL;
        _cleanup_free_ uint8_t *start = malloc(QUICK_BYTES);
        const ValidatorOptions order = {
                .source = SOURCE_DIRECTORY, .kind = kind, .name = "", .size_bytes = size_bytes
        };
        if (!start || validator_new(&v, &order) < 0)
                return VERDICT_OK; /* no evidence against it; it is validated when it is read */

        size_t wanted = (size_t)MIN(size_bytes, (uint64_t)QUICK_BYTES), have = 0;
        while (have < wanted) {
                ssize_t n = pread(fd, start + have, wanted - have, (off_t)have);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        break;
                have += (size_t)n;
        }
        validator_update(v, start, have);
        return v->ops->quick ? v->ops->quick(v) : VERDICT_OK;
}
