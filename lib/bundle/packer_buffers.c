/* No lock: a buffer changes hands by one atomic exchange, and all of it goes with the last who holds it. */
#include "lib/bundle/packer_buffers.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define SPARE_MAX 32 /* more are unmapped at once */

struct PackerBuffers {
        uint64_t bytes;
        atomic_uint n_holders; /* the owner, and parts with memory */
        atomic_bool is_released;
        _Atomic(void *) spare[SPARE_MAX];
};

int packer_buffers_new(PackerBuffers **ret, uint64_t bytes) {
        PackerBuffers *b = calloc(1, sizeof *b);
        if (!b)
                return -ENOMEM;
        b->bytes = bytes;
        atomic_init(&b->n_holders, 1);
        *ret = b;
        return 0;
}

static void unmap(const PackerBuffers *b, void *data) {
        if (data)
                (void)munmap(data, b->bytes); /* what mmap gave */
}

static void unmap_spare(PackerBuffers *b) {
        for (size_t i = 0; i < SPARE_MAX; i++)
                unmap(b, atomic_exchange(&b->spare[i], NULL));
}

static void let_go(PackerBuffers *b) {
        if (atomic_fetch_sub(&b->n_holders, 1) > 1)
                return;
        unmap_spare(b);
        free(b);
}

PackerBuffers *packer_buffers_release(PackerBuffers *b) {
        if (!b)
                return NULL;
        atomic_store(&b->is_released, true);
        unmap_spare(b);
        let_go(b);
        return NULL;
}

static void *take_spare(PackerBuffers *b) {
        for (size_t i = 0; i < SPARE_MAX; i++) {
                void *data = atomic_exchange(&b->spare[i], NULL);
                if (data)
                        return data;
        }
        return NULL;
}

int packer_buffers_take(PackerBuffers *b, PackedPart *part) {
        void *data = take_spare(b);
        if (!data) {
                data = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                            0);
                if (data == MAP_FAILED)
                        return -ENOMEM;
                (void)madvise(
                        data, b->bytes,
                        MADV_DONTDUMP); /* advice: evidence has no business in a core file of ours */
        }
        atomic_fetch_add(&b->n_holders, 1);
        part->data = data;
        part->mapped_bytes = b->bytes;
        part->buffers = b;
        return 0;
}

void packer_buffers_give(PackedPart *part) {
        PackerBuffers *b = part->buffers;
        void *data = part->data;
        if (!b)
                return;
        for (size_t i = 0; i < SPARE_MAX && data && !atomic_load(&b->is_released); i++) {
                void *empty = NULL;
                if (atomic_compare_exchange_strong(&b->spare[i], &empty, data))
                        data = NULL;
        }
        unmap(b, data);
        let_go(b);
}
