/* A core that can be read only once, from its beginning: compressed by zstd, or from a pipe. What a
 * report needs is told by the headers and notes, which come first: the stacks of the threads, the
 * first page of each file, the message of abort(3). That is kept while the rest passes. Nothing is
 * written. What can only be found by following pointers, as Python's stacks are, is left out. */
#pragma once

#include "collectors/crash/core/core_notes.h"

typedef struct CoreStream CoreStream;

/** @return whether a file is one: it begins as zstd's do, or has no offsets */
bool core_stream_is_one(int fd);

/** Reads all of it. @param ret  set unless the result is negative  @param fd  borrowed
 * @param end_usec  CLOCK_BOOTTIME: when to stop reading
 * @return 0, also when it ends early; CORE_NOTES_E_*; -ENOMEM */
int core_stream_new(CoreStream **ret, int fd, uint64_t end_usec);
CoreStream *core_stream_free(CoreStream *s);
DEFINE_CLEANUP(CoreStream, core_stream_free);

/** @return how large it is, decompressed, as far as it could be read */
uint64_t core_stream_bytes(const CoreStream *s);
/** @return why it ended early, as far as can be told; NULL. Static */
const char *core_stream_fault(const CoreStream *s);
/** As CoreRead: nothing where nothing was kept. */
ssize_t core_stream_read(const CoreStream *s, void *data, size_t n, uint64_t offset);
